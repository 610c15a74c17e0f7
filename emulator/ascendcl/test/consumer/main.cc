// What any program does first with CANN. Prints the code of the first call that fails.
#include <cstdio>

#include "acl/acl.h"

int main() {
  void* block = nullptr;
  aclError code = aclInit(nullptr);
  if (code == ACL_SUCCESS) code = aclrtSetDevice(0);
  if (code == ACL_SUCCESS) code = aclrtMalloc(&block, 4096, ACL_MEM_MALLOC_HUGE_FIRST);
  if (code == ACL_SUCCESS) code = aclrtFree(block);
  if (code == ACL_SUCCESS) code = aclrtResetDevice(0);
  if (code == ACL_SUCCESS) code = aclFinalize();
  printf("acl says %d\n", code);
  return code == ACL_SUCCESS ? 0 : 1;
}
