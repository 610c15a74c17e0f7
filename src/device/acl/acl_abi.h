// The part of Huawei's ACL runtime ABI that this product calls, as plain types, so that no vendor header is needed to
// build. acl_signature_check.cc compares every signature with real headers where they are present.
// Source of all facts: the public CANN API reference (functions and enum values have not changed since CANN 6).
#pragma once

#include <cstddef>
#include <cstdint>

namespace mooncake::acl {

using AclError = int;  // 0 = success
using Context = void*;
using Stream = void*;
using Event = void*;

inline constexpr int kHostToDevice = 1;
inline constexpr int kDeviceToHost = 2;
inline constexpr int kDeviceToDevice = 3;
inline constexpr int kMallocHugeFirst = 0;
inline constexpr int kMallocNormalOnly = 2;
inline constexpr int kDdrMemory = 0;
inline constexpr int kHbmMemory = 1;
inline constexpr int kLocationHost = 0;
inline constexpr int kLocationDevice = 1;
inline constexpr int kHostRegisterMapped = 0;
inline constexpr uint32_t kHostRegisterPinned = 0x10000000;  // of aclrtHostRegisterV2
inline constexpr uint32_t kEventSync = 1;
inline constexpr uint32_t kEventCaptureStreamProgress = 2;
inline constexpr uint32_t kStreamFastLaunch = 1;
inline constexpr uint32_t kStreamFastSync = 2;

inline constexpr int32_t kStreamComplete = 0;
inline constexpr int32_t kStreamNotReady = 1;
inline constexpr size_t kIpcKeyBytes = 65;  // with the NUL
inline constexpr uint64_t kIpcImportEnablePeerAccess = 1;

inline constexpr AclError kSuccess = 0;
inline constexpr AclError kRepeatInitialize = 100002;
inline constexpr AclError kContextNull = 107002;
inline constexpr AclError kFeatureNotSupported = 207000;
inline constexpr AclError kOutOfDeviceMemory = 207001;
inline constexpr AclError kStreamSyncTimeout = 507046;
inline constexpr AclError kEventSyncTimeout = 507047;
inline constexpr AclError kHostMemoryAlreadyRegistered = 507910;

// aclrtMemLocation.
struct Location {
  uint32_t id;
  int32_t type;
};

// aclrtPtrAttributes.
struct PointerAttributes {
  Location location;
  uint32_t page_size;
  uint32_t reserved[4];
};
static_assert(sizeof(PointerAttributes) == 28);

// aclrtMemcpyBatchAttr.
struct BatchAttribute {
  Location target;
  Location source;
  uint8_t reserved[16];
};
static_assert(sizeof(BatchAttribute) == 32);

// One entry per function: member name, symbol, return type, parameters. Optional symbols may be missing in older
// runtimes.
#define MC_ACL_REQUIRED(X)                                                                        \
  X(Init, aclInit, AclError, (const char*))                                                       \
  X(GetDeviceCount, aclrtGetDeviceCount, AclError, (uint32_t*))                                   \
  X(SetDevice, aclrtSetDevice, AclError, (int32_t))                                               \
  X(ResetDevice, aclrtResetDevice, AclError, (int32_t))                                           \
  X(GetCurrentContext, aclrtGetCurrentContext, AclError, (Context*))                              \
  X(SetCurrentContext, aclrtSetCurrentContext, AclError, (Context))                               \
  X(DeviceCanAccessPeer, aclrtDeviceCanAccessPeer, AclError, (int32_t*, int32_t, int32_t))        \
  X(DeviceEnablePeerAccess, aclrtDeviceEnablePeerAccess, AclError, (int32_t, uint32_t))           \
  X(GetMemInfo, aclrtGetMemInfo, AclError, (int, size_t*, size_t*))                               \
  X(Malloc, aclrtMalloc, AclError, (void**, size_t, int))                                         \
  X(Free, aclrtFree, AclError, (void*))                                                           \
  X(MallocHost, aclrtMallocHost, AclError, (void**, size_t))                                      \
  X(FreeHost, aclrtFreeHost, AclError, (void*))                                                   \
  X(Memcpy, aclrtMemcpy, AclError, (void*, size_t, const void*, size_t, int))                     \
  X(MemcpyAsync, aclrtMemcpyAsync, AclError, (void*, size_t, const void*, size_t, int, Stream))   \
  X(CreateStreamWithConfig, aclrtCreateStreamWithConfig, AclError, (Stream*, uint32_t, uint32_t)) \
  X(DestroyStream, aclrtDestroyStream, AclError, (Stream))                                        \
  X(SynchronizeStreamWithTimeout, aclrtSynchronizeStreamWithTimeout, AclError, (Stream, int32_t)) \
  X(CreateEventExWithFlag, aclrtCreateEventExWithFlag, AclError, (Event*, uint32_t))              \
  X(DestroyEvent, aclrtDestroyEvent, AclError, (Event))                                           \
  X(RecordEvent, aclrtRecordEvent, AclError, (Event, Stream))                                     \
  X(GetRecentErrMsg, aclGetRecentErrMsg, const char*, ())
#define MC_ACL_OPTIONAL(X)                                                                           \
  X(FinalizeReference, aclFinalizeReference, AclError, (uint64_t*))                                  \
  X(MallocAlign32, aclrtMallocAlign32, AclError, (void**, size_t, int))                              \
  X(PointerGetAttributes, aclrtPointerGetAttributes, AclError, (const void*, PointerAttributes*))    \
  X(HostRegister, aclrtHostRegister, AclError, (void*, uint64_t, int, void**))                       \
  X(HostRegisterV2, aclrtHostRegisterV2, AclError, (void*, uint64_t, uint32_t))                      \
  X(HostUnregister, aclrtHostUnregister, AclError, (void*))                                          \
  X(DeviceGetBareTgid, aclrtDeviceGetBareTgid, AclError, (int32_t*))                                 \
  X(IpcMemGetExportKey, aclrtIpcMemGetExportKey, AclError, (void*, size_t, char*, size_t, uint64_t)) \
  X(IpcMemSetImportPid, aclrtIpcMemSetImportPid, AclError, (const char*, int32_t*, size_t))          \
  X(IpcMemImportByKey, aclrtIpcMemImportByKey, AclError, (void**, const char*, uint64_t))            \
  X(IpcMemClose, aclrtIpcMemClose, AclError, (const char*))                                          \
  X(StreamAbort, aclrtStreamAbort, AclError, (Stream))                                               \
  X(StreamQuery, aclrtStreamQuery, AclError, (Stream, int32_t*))                                     \
  X(SynchronizeEventWithTimeout, aclrtSynchronizeEventWithTimeout, AclError, (Event, int32_t))       \
  X(MemcpyBatchAsync, aclrtMemcpyBatchAsync, AclError,                                               \
    (void**, size_t*, void**, size_t*, size_t, BatchAttribute*, size_t*, size_t, size_t*, Stream))

// Every function, found by name in the loaded library; optional ones are null when the runtime lacks them.
struct FunctionTable {
#define MC_ACL_MEMBER(member, symbol, result, parameters) result(*member) parameters = nullptr;
  MC_ACL_REQUIRED(MC_ACL_MEMBER)
  MC_ACL_OPTIONAL(MC_ACL_MEMBER)
#undef MC_ACL_MEMBER
};

}  // namespace mooncake::acl
