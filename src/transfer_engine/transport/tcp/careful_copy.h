// Copies into memory of users that may have gone without a word.
#pragma once

#include <cstddef>

namespace mooncake::tcp {

// False when not all of [to, to + bytes) can be written: it was unmapped, is read-only or lies behind a file's end.
// What the kernel is told to receive there says so by itself; a plain copy would be the end of the process.
[[nodiscard]] bool CarefulCopy(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace mooncake::tcp
