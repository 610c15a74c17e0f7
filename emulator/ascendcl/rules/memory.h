// The parts of allocating and freeing that several functions share.
#pragma once
#include "rules/call.h"

namespace aclemu {

// padding: bytes the driver adds after rounding.
aclError MallocDevice(Runtime& runtime, void** out, size_t size, aclrtMemMallocPolicy policy, uint64_t padding);
aclError MallocHost(Runtime& runtime, void** out, size_t size);
aclError FreeDevice(Runtime& runtime, void* ptr);
aclError FreeHost(Runtime& runtime, void* ptr);

// Where kernels see registered memory: an address for them only, never for copies. 0 when there is none left.
uintptr_t DeviceView(Runtime& runtime, const Range& registered);

}  // namespace aclemu
