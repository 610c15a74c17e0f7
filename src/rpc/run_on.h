// Moves a call from the I/O thread, which must not block, to an executor.
#pragma once

#include <functional>

#include "common/executor.h"
#include "rpc/rpc_server.h"

namespace mooncake::rpc {

// Runs `work` with the call on the executor. When its queue is full the call fails with UNAVAILABLE_IN_CURRENT_STATUS,
// so that a flood costs the flooders and not memory.
void RunOn(Executor& executor, ServerCall call, std::move_only_function<void(ServerCall)> work);

}  // namespace mooncake::rpc
