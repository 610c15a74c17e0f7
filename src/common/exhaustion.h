// Where exceptions of libraries become errors: at the doors of modules that open threads, sockets and memory.
#pragma once

#include <exception>

#include "common/status.h"

namespace mooncake {

// What `work` returns. That there is no memory, thread or descriptor, which libraries tell by an exception, is
// INTERNAL_ERROR.
template <typename Work>
auto CatchExhaustion(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    return Error(ErrorCode::INTERNAL_ERROR, "{}", error.what());
  }
}

}  // namespace mooncake
