// The link stubs that CANN ships in devlib: every function is there and answers that it is a stub.
#include "acl/acl.h"

namespace {

// What a function returns: the code, or no text and no object.
struct StubAnswer {
  operator aclError() const { return ACL_ERROR_COMPILING_STUB_MODE; }
  template <typename T>
  operator T*() const {
    return nullptr;
  }
};

}  // namespace

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define ACL_API(ret, name, params, args) \
  extern "C" ret name params {           \
    return StubAnswer();                 \
  }
#include "rules/api_list.inc"
#undef ACL_API
