/* The one header programs include: types, codes and the runtime API. */
#ifndef ACL_ACL_H_
#define ACL_ACL_H_

#include "acl/acl_base.h"
#include "acl/acl_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* First call 0, later calls ACL_ERROR_REPEAT_INITIALIZE (harmless). configPath: NULL or a readable JSON file. */
ACL_FUNC_VISIBILITY aclError aclInit(const char* configPath);
/* Clears the init count; ACL_ERROR_REPEAT_FINALIZE without a live init. */
ACL_FUNC_VISIBILITY aclError aclFinalize(void);
/* Drops one init reference and stores what is left (refCount may be NULL). */
ACL_FUNC_VISIBILITY aclError aclFinalizeReference(uint64_t* refCount);
/* The thread's last error text, or NULL; reading clears it. Valid until the thread's next ACL call. */
ACL_FUNC_VISIBILITY const char* aclGetRecentErrMsg(void);

#ifdef __cplusplus
}
#endif

#endif /* ACL_ACL_H_ */
