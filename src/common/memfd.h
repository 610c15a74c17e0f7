// Memory as a file without a name, which other processes of the host can be given to map.
#pragma once

#include <cstddef>

#include "common/fd.h"
#include "common/status.h"

namespace mooncake {

// The sizes of huge pages that memory can be asked on.
inline constexpr size_t kHugePage2M = size_t{2} << 20;
inline constexpr size_t kHugePage1G = size_t{1} << 30;
// INVALID_PARAMS naming both for any other size.
Result<void> CheckHugePageSize(size_t bytes);

// A memfd of `bytes`, on huge pages unless `huge_page_bytes` is 0. Its size is sealed, so that nobody who maps it gets
// a bus error, and it is never one of the standard streams, into which others print. NO_AVAILABLE_HANDLE with the step
// that failed and why.
Result<Fd> CreateMemfd(const char* name, size_t bytes, size_t huge_page_bytes);
// The whole of it, readable and writable; MAP_FAILED with errno set. Huge pages are reserved by the mapping: without
// that, a page that is missing later would be a bus error.
void* MapMemfd(int memfd, size_t bytes, size_t huge_page_bytes);
// Takes the pages of [at, at + bytes) of a mapping that begins at `base`, now, huge ones where the kernel has them (6.1
// and later). 0 or an errno; never a bus error.
int PopulateMemfd(std::byte* base, int memfd, size_t at, size_t bytes);

}  // namespace mooncake
