// Functions that are present but do nothing: they say so once and answer that they are not supported.
#include "rules/call.h"

namespace aclemu {
namespace {

void NotEmulated(Api api) {
  static std::atomic<bool> logged[static_cast<size_t>(Api::kCount)];
  Call(api, NeedsInit::kNo, [&](Runtime&) {
    if (!logged[static_cast<size_t>(api)].exchange(true)) Log("%s is not emulated", Name(api));
    return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "%s is not emulated", Name(api));
  });
}

}  // namespace

// Callers pass what the real function takes; nobody looks at it.
#undef ACL_STUB
#undef ACL_STUB_NULL
#define ACL_STUB(since, name)                   \
  ACLEMU_ENTRY(aclError) aclemu_impl_##name() { \
    NotEmulated(Api::name);                     \
    return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;    \
  }
#define ACL_STUB_NULL(since, name)           \
  ACLEMU_ENTRY(void*) aclemu_impl_##name() { \
    NotEmulated(Api::name);                  \
    return nullptr;                          \
  }
#include "rules/stub_list.inc"

}  // namespace aclemu
