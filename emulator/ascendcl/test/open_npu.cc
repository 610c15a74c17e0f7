// Opens the NPU runtime as the store does and prints what it says.
#include <cstdio>

#include "device/acl/acl_runtime.h"

int main() {
  auto runtime = mooncake::acl::AclRuntime::Open();
  printf("%s\n", runtime ? "opened" : runtime.error().message().c_str());
  return runtime ? 0 : 1;
}
