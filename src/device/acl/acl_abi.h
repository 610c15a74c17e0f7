// The part of Huawei's ACL runtime ABI that this product calls, as plain types, so that no vendor header is needed to
// build. acl_signature_check.cc compares every signature with real headers where they are present.
// Source of all facts: the public CANN API reference (functions and enum values have not changed since CANN 6).
#pragma once

#include <cstddef>
#include <cstdint>

namespace mooncake::acl {

using AclError = int;  // 0 = success
using Context = void*;

inline constexpr int kHostToDevice = 1;
inline constexpr int kDeviceToHost = 2;
inline constexpr int kDeviceToDevice = 3;
inline constexpr int kMallocHugeFirst = 0;
inline constexpr int kHbmMemory = 1;
inline constexpr int kLocationDevice = 1;

inline constexpr AclError kSuccess = 0;
inline constexpr AclError kRepeatInitialize = 100002;
inline constexpr AclError kContextNull = 107002;
inline constexpr AclError kOutOfDeviceMemory = 207001;

// aclrtPtrAttributes: location {id, type}, page size, 16 reserved bytes.
struct PointerAttributes {
  uint32_t location_id;
  int32_t location_type;
  uint32_t page_size;
  uint32_t reserved[4];
};
static_assert(sizeof(PointerAttributes) == 28);

// One entry per function: member name, symbol, return type, parameters. Optional symbols may be missing in older
// runtimes.
#define MC_ACL_REQUIRED(X)                                                    \
  X(Init, aclInit, AclError, (const char*))                                   \
  X(GetDeviceCount, aclrtGetDeviceCount, AclError, (uint32_t*))               \
  X(SetDevice, aclrtSetDevice, AclError, (int32_t))                           \
  X(ResetDevice, aclrtResetDevice, AclError, (int32_t))                       \
  X(GetCurrentContext, aclrtGetCurrentContext, AclError, (Context*))          \
  X(SetCurrentContext, aclrtSetCurrentContext, AclError, (Context))           \
  X(GetMemInfo, aclrtGetMemInfo, AclError, (int, size_t*, size_t*))           \
  X(Malloc, aclrtMalloc, AclError, (void**, size_t, int))                     \
  X(Free, aclrtFree, AclError, (void*))                                       \
  X(Memcpy, aclrtMemcpy, AclError, (void*, size_t, const void*, size_t, int)) \
  X(GetRecentErrMsg, aclGetRecentErrMsg, const char*, ())
#define MC_ACL_OPTIONAL(X)                                              \
  X(FinalizeReference, aclFinalizeReference, AclError, (uint64_t*))     \
  X(MallocAlign32, aclrtMallocAlign32, AclError, (void**, size_t, int)) \
  X(PointerGetAttributes, aclrtPointerGetAttributes, AclError, (const void*, PointerAttributes*))

// Every function, found by name in the loaded library; optional ones are null when the runtime lacks them.
struct FunctionTable {
#define MC_ACL_MEMBER(member, symbol, result, parameters) result(*member) parameters = nullptr;
  MC_ACL_REQUIRED(MC_ACL_MEMBER)
  MC_ACL_OPTIONAL(MC_ACL_MEMBER)
#undef MC_ACL_MEMBER
};

}  // namespace mooncake::acl
