/* Holds the headers to the documented sizes, compiled as C so that they stay usable from C. */
#include "acl/acl.h"
#include "aclemu.h"

_Static_assert(sizeof(aclError) == 4 && sizeof(aclrtMemcpyKind) == 4 && sizeof(aclrtMemMallocPolicy) == 4, "enums");
_Static_assert(sizeof(aclrtMemAttr) == 4 && sizeof(aclrtEventRecordedStatus) == 4, "enums");
_Static_assert(sizeof(aclrtStreamStatus) == 4 && sizeof(aclrtDeviceStatus) == 4 && sizeof(aclrtRunMode) == 4, "enums");
_Static_assert(sizeof(aclrtMemLocation) == 8, "aclrtMemLocation");
_Static_assert(sizeof(aclrtPtrAttributes) == 28, "aclrtPtrAttributes");
_Static_assert(sizeof(aclrtPhysicalMemProp) == 32, "aclrtPhysicalMemProp");
_Static_assert(offsetof(aclrtPhysicalMemProp, location) == 12, "aclrtPhysicalMemProp.location");
_Static_assert(offsetof(aclrtPhysicalMemProp, reserve) == 24, "aclrtPhysicalMemProp.reserve");
_Static_assert(sizeof(aclrtMemAccessDesc) == 24, "aclrtMemAccessDesc");
_Static_assert(sizeof(aclrtMemcpyBatchAttr) == 32, "aclrtMemcpyBatchAttr");
_Static_assert(sizeof(aclrtMallocAttribute) == 12 && sizeof(aclrtMallocConfig) == 16, "aclrtMallocConfig");
_Static_assert(sizeof(aclCANNPackageVersion) == 512, "aclCANNPackageVersion");
_Static_assert(sizeof(aclrtEventStatus) == 4 && sizeof(aclrtEventWaitStatus) == 4, "enums");
_Static_assert(sizeof(aclrtCallbackBlockType) == 4 && sizeof(aclrtDevAttr) == 4, "enums");
_Static_assert(sizeof(aclrtMemFabricHandle) == 128, "aclrtMemFabricHandle");
_Static_assert(sizeof(aclrtIpcEventHandle) == 64, "aclrtIpcEventHandle");
