// Finds the ACL runtime at run time and fills the function table; names its error numbers.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"
#include "device/acl/acl_abi.h"

namespace mooncake::acl {

struct Library {
  FunctionTable functions;
  std::string path;  // what was loaded
};

// Loads MC_ACL_LIBRARY if set, else libascendcl.so, else libacl_rt.so. Never unloaded: runtimes keep threads of their
// own. INTERNAL_ERROR lists what was tried and why each failed, or the symbols that are missing.
Result<Library> LoadLibrary();
// True when one of them is in this process already, whoever brought it (an engine does before it has NPU memory).
bool IsLibraryLoaded();

// "MEMORY_ALLOCATION (device out of memory)"; "unknown" for numbers outside the table.
std::string_view ErrorName(AclError error);
// Calls a function that gives something back, once more if it fails: what it does not give back is lost for good.
template <typename Function, typename... Args>
AclError Insist(Function function, Args... args) {
  const AclError rc = function(args...);
  return rc == kSuccess ? rc : function(args...);
}

// True for numbers after which nothing on the device can be used by this process any more.
bool MeansDeviceLost(AclError error);

// Forgets what the runtime said about a failure that was expected, so that it is not taken for the text of a later one
// that comes without.
void DropErrorText(const FunctionTable& functions);

// Status for a failed call: "aclrtMalloc(4096 B) on device 0: 207001 MEMORY_ALLOCATION ...; runtime says: ...".
Status MakeStatus(const FunctionTable& functions, ErrorCode code, AclError error, std::string_view what);

}  // namespace mooncake::acl
