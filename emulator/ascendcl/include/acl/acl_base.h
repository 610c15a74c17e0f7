/* Basic ACL types: the return type, the return codes of the ACL layer and the opaque handles. */
#ifndef ACL_ACL_BASE_H_
#define ACL_ACL_BASE_H_

#include <stddef.h>
#include <stdint.h>

#include "acl/error_codes/rt_error_codes.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ACL_FUNC_VISIBILITY __attribute__((visibility("default")))

typedef int aclError;

/* Never dereferenced by callers; a stale one is answered with an error code. */
typedef void* aclrtContext;
typedef void* aclrtStream;
typedef void* aclrtEvent;

#define ACL_SUCCESS 0
#define ACL_ERROR_NONE 0
#define ACL_ERROR_INVALID_PARAM 100000
#define ACL_ERROR_UNINITIALIZE 100001
#define ACL_ERROR_REPEAT_INITIALIZE 100002
#define ACL_ERROR_INVALID_FILE 100003
#define ACL_ERROR_REPEAT_SUBSCRIBE 100033
#define ACL_ERROR_REPEAT_FINALIZE 100037
#define ACL_ERROR_COMPILING_STUB_MODE 100039
#define ACL_ERROR_BAD_ALLOC 200000
#define ACL_ERROR_API_NOT_SUPPORT 200001
#define ACL_ERROR_FEATURE_UNSUPPORTED 200006
#define ACL_ERROR_INTERNAL_ERROR 500000
#define ACL_ERROR_FAILURE 500001
#define ACL_ERROR_RT_FAILURE 500003
#define ACL_ERROR_DRV_FAILURE 500004

#ifdef __cplusplus
}
#endif

#endif /* ACL_ACL_BASE_H_ */
