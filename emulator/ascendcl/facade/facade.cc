// A facade library: the public ACL names, each forwarding to the one core, so that several facades share one state.
#include "acl/acl.h"

#define ACL_API(ret, name, params, args)    \
  extern "C" ret aclemu_impl_##name params; \
  extern "C" ret name params {              \
    return aclemu_impl_##name args;         \
  }
#include "rules/api_list.inc"
#undef ACL_API
