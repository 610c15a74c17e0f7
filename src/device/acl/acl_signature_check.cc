// Compile-time proof that the function table agrees with real ACL headers. Built only where headers are found.
#include <acl/acl.h>

#include <type_traits>

#include "device/acl/acl_abi.h"

namespace mooncake::acl {
namespace {

// Our table uses int for the enums and our own struct for attributes: same size and passing convention.
template <typename Real>
struct AbiOf {
  using type = std::conditional_t<std::is_enum_v<Real>, int, Real>;
};
#if MC_ACL_HEADER_HAS_aclrtStreamQuery
template <>
struct AbiOf<aclrtStreamStatus*> {
  using type = int32_t*;
};
static_assert(sizeof(aclrtStreamStatus) == sizeof(int32_t));
static_assert(ACL_STREAM_STATUS_COMPLETE == kStreamComplete && ACL_STREAM_STATUS_NOT_READY == kStreamNotReady);
#endif
#if MC_ACL_HEADER_HAS_aclrtPointerGetAttributes
template <>
struct AbiOf<aclrtPtrAttributes*> {
  using type = PointerAttributes*;
};
static_assert(sizeof(aclrtPtrAttributes) == sizeof(PointerAttributes));
#endif
#if MC_ACL_HEADER_HAS_aclrtMemcpyBatchAsync
template <>
struct AbiOf<aclrtMemcpyBatchAttr*> {
  using type = BatchAttribute*;
};
static_assert(sizeof(aclrtMemcpyBatchAttr) == sizeof(BatchAttribute));
#endif
template <typename Function>
struct AbiSignature;
template <typename Return, typename... Args>
struct AbiSignature<Return (*)(Args...)> {
  using type = Return (*)(typename AbiOf<Args>::type...);
};

#define MC_ACL_CHECK(member, symbol, result, parameters)                                                \
  static_assert(std::is_same_v<typename AbiSignature<decltype(&::symbol)>::type, result(*) parameters>, \
                #symbol " has another signature than our table");
MC_ACL_REQUIRED(MC_ACL_CHECK)

// The build defines MC_ACL_HEADER_HAS_x as 0 or 1 for each optional x: headers of older releases lack some.
#define MC_ACL_CHECK_0(member, symbol, result, parameters)
#define MC_ACL_CHECK_1(member, symbol, result, parameters) MC_ACL_CHECK(member, symbol, result, parameters)
#define MC_ACL_CHECK_PASTE(has, ...) MC_ACL_CHECK_##has(__VA_ARGS__)
#define MC_ACL_CHECK_CHOSEN(has, ...) MC_ACL_CHECK_PASTE(has, __VA_ARGS__)
#define MC_ACL_CHECK_OPTIONAL(member, symbol, result, parameters) \
  MC_ACL_CHECK_CHOSEN(MC_ACL_HEADER_HAS_##symbol, member, symbol, result, parameters)
MC_ACL_OPTIONAL(MC_ACL_CHECK_OPTIONAL)

static_assert(ACL_MEMCPY_HOST_TO_DEVICE == kHostToDevice && ACL_MEMCPY_DEVICE_TO_HOST == kDeviceToHost);
static_assert(ACL_MEMCPY_DEVICE_TO_DEVICE == kDeviceToDevice && ACL_HBM_MEM == kHbmMemory && ACL_DDR_MEM == kDdrMemory);
static_assert(ACL_MEM_MALLOC_HUGE_FIRST == kMallocHugeFirst && ACL_MEM_MALLOC_NORMAL_ONLY == kMallocNormalOnly);
static_assert(ACL_EVENT_SYNC == kEventSync && ACL_EVENT_CAPTURE_STREAM_PROGRESS == kEventCaptureStreamProgress);
static_assert(ACL_STREAM_FAST_LAUNCH == kStreamFastLaunch && ACL_STREAM_FAST_SYNC == kStreamFastSync);

}  // namespace
}  // namespace mooncake::acl
