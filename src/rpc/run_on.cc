// Hand-over of calls to executors.
#include "rpc/run_on.h"

#include <memory>
#include <utility>

namespace mooncake::rpc {

void RunOn(Executor& executor, ServerCall call, std::move_only_function<void(ServerCall)> work) {
  auto shared = std::make_shared<ServerCall>(std::move(call));
  std::move_only_function<void()> task = [shared, work = std::move(work)]() mutable { work(std::move(*shared)); };
  if (!executor.TrySubmit(task)) {
    std::move(*shared).Fail(Status(ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS, "too many requests are waiting here"));
  }
}

}  // namespace mooncake::rpc
