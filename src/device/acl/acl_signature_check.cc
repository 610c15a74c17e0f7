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
template <>
struct AbiOf<aclrtPtrAttributes*> {
  using type = PointerAttributes*;
};
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
MC_ACL_OPTIONAL(MC_ACL_CHECK)

static_assert(sizeof(aclrtPtrAttributes) == sizeof(PointerAttributes));
static_assert(ACL_MEMCPY_HOST_TO_DEVICE == kHostToDevice && ACL_MEMCPY_DEVICE_TO_HOST == kDeviceToHost);
static_assert(ACL_MEM_MALLOC_HUGE_FIRST == kMallocHugeFirst && ACL_HBM_MEM == kHbmMemory);

}  // namespace
}  // namespace mooncake::acl
