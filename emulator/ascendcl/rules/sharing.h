// Checks of IPC and virtual memory that copies and frees share.
#pragma once
#include "core/shares.h"
#include "rules/call.h"

namespace aclemu {

// Rule V2: what one may do with an imported pointer.
aclError CheckImported(const Place& dst, const Place& src, aclrtMemcpyKind kind, bool async);
// Rules V1, V2: whether aclrtFree may free what begins there. 0 also for what aclrtFree will refuse by itself.
aclError CheckFree(const Place& place);
// Whether sharing made the memory of the one reachable from the device of the other.
bool ReachableByShare(const Place& dst, const Place& src);
// The code for an answer of core/shares.h. owner: what the pid list is called in the rule.
aclError Answer(ShareAnswer answer, Rule rule);

inline aclError NeedSharing() {
  if (SharedDevice::Sharing()) return ACL_SUCCESS;
  return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "sharing between processes needs ACLEMU_DIR, the same for all of them");
}

}  // namespace aclemu
