// Chunked, pipelined window transfers over RPC.
#include "transfer_engine/transport/rpc_transport.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "protocol/methods.h"
#include "protocol/peer_messages.h"
#include "rpc/run_on.h"

namespace mooncake {
namespace {

// Chunks on the wire at once for one transfer: enough to keep the connection busy while one is being copied.
constexpr size_t kChunksInFlight = 4;

// One chunk from submission until its caller has seen the result.
class Chunk {
 public:
  Chunk(const MemoryRange& local, std::shared_ptr<StagingPool::Slot> slot) : local_(local), slot_(std::move(slot)) {}

  // The host bytes that the wire uses: the caller's own, or the staging slot's.
  HostRange wire_bytes() const {
    if (slot_ == nullptr) return std::get<HostRange>(local_);
    return slot_->bytes().first(SizeOf(local_));
  }
  void Complete(Result<void> result) {
    std::lock_guard lock(mutex_);
    result_ = std::move(result);
    done_.notify_one();
  }
  // No deadline here: the call underneath has one, and completes only when the memory is free.
  Result<void> Wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return result_.has_value(); });
    return *result_;
  }
  Result<void> StageOut() { return slot_ ? CopyToHost(wire_bytes(), local_) : Result<void>{}; }
  Result<void> StageIn() { return slot_ ? CopyFromHost(local_, wire_bytes()) : Result<void>{}; }

 private:
  const MemoryRange local_;
  const std::shared_ptr<StagingPool::Slot> slot_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::optional<Result<void>> result_;
};

// Cuts a transfer into chunks and keeps kChunksInFlight of them going. `start` submits a chunk, `finish` runs on the
// caller's thread once its bytes are there. The first error stops further chunks; those under way are waited for.
template <typename Start, typename Finish>
Result<void> RunChunks(StagingPool& staging, const MemoryRange& local, Deadline deadline, Start start, Finish finish) {
  std::deque<std::shared_ptr<Chunk>> flying;
  Result<void> first_error;
  const auto settle_one = [&] {
    const std::shared_ptr<Chunk> chunk = std::move(flying.front());
    flying.pop_front();
    Result<void> result = chunk->Wait();
    if (result && first_error) result = finish(*chunk);
    if (!result && first_error) first_error = std::move(result);
  };
  const size_t total = SizeOf(local);
  for (size_t done = 0; done < total && first_error;) {
    if (flying.size() == kChunksInFlight) {
      settle_one();
      continue;
    }
    const size_t size = std::min(kTransferChunkBytes, total - done);
    std::shared_ptr<StagingPool::Slot> slot;
    if (!IsHost(local)) {
      slot = staging.TryAcquire();
      // Never wait for a slot while holding some: other transfers may be doing the same.
      while (slot == nullptr && !flying.empty()) settle_one();
      if (slot == nullptr && first_error) {
        auto acquired = staging.Acquire(deadline);
        if (!acquired) first_error = std::unexpected(acquired.error());
        if (acquired) slot = std::move(*acquired);
      }
      if (!first_error) break;
    }
    auto chunk = std::make_shared<Chunk>(SubRange(local, done, size), std::move(slot));
    if (auto started = start(chunk, done); !started) {
      first_error = std::move(started);
      break;
    }
    flying.push_back(std::move(chunk));
    done += size;
  }
  while (!flying.empty()) settle_one();
  return first_error;
}

Result<void> CheckSize(const protocol::WindowRangeRequest& range, uint64_t payload_bytes) {
  if (range.size == payload_bytes) return {};
  return Error(ErrorCode::TRANSFER_FAIL, "asked for {} B of a window, {} B came", range.size, payload_bytes);
}

}  // namespace

Result<void> RpcTransport::Read(const RemoteWindow& window, uint64_t offset, const MemoryRange& local,
                                Deadline deadline) {
  const auto start = [&](const std::shared_ptr<Chunk>& chunk, size_t done) -> Result<void> {
    const protocol::WindowRangeRequest range{window.id, offset + done, chunk->wire_bytes().size()};
    rpc::CallArguments arguments;
    auto received = std::make_shared<bool>(false);
    arguments.sink = [chunk, range, received](std::string_view,
                                              uint64_t payload_bytes) -> Result<std::vector<rpc::MutableSpan>> {
      MC_TRY(CheckSize(range, payload_bytes));
      *received = true;
      return std::vector<rpc::MutableSpan>{chunk->wire_bytes()};
    };
    window.peer->CallAsync(protocol::kWindowRead, rpc::Encode(range), std::move(arguments), deadline,
                           [chunk, range, received](Result<std::string> reply) {
                             if (!reply) return chunk->Complete(std::unexpected(reply.error()));
                             chunk->Complete(*received ? Result<void>{} : CheckSize(range, 0));
                           });
    return {};
  };
  return RunChunks(staging_, local, deadline, start, [](Chunk& chunk) { return chunk.StageIn(); });
}

Result<void> RpcTransport::Write(const RemoteWindow& window, uint64_t offset, const MemoryRange& local,
                                 Deadline deadline) {
  const auto start = [&](const std::shared_ptr<Chunk>& chunk, size_t done) -> Result<void> {
    MC_TRY(chunk->StageOut());
    const protocol::WindowRangeRequest range{window.id, offset + done, chunk->wire_bytes().size()};
    rpc::CallArguments arguments;
    arguments.payload = {chunk->wire_bytes()};
    window.peer->CallAsync(protocol::kWindowWrite, rpc::Encode(range), std::move(arguments), deadline,
                           [chunk](Result<std::string> reply) {
                             chunk->Complete(reply ? Result<void>{} : std::unexpected(reply.error()));
                           });
    return {};
  };
  return RunChunks(staging_, local, deadline, start, [](Chunk&) { return Result<void>{}; });
}

// --- answering side ---

namespace {

void ReplyFromDevice(rpc::ServerCall call, const WindowTable::Window& window, protocol::WindowRangeRequest range,
                     StagingPool& staging) {
  auto slot = staging.Acquire(call.deadline());
  if (!slot) return std::move(call).Fail(slot.error());
  const HostRange bytes = (*slot)->bytes().first(range.size);
  if (auto copied = CopyToHost(bytes, SubRange(window.memory, range.offset, range.size)); !copied) {
    return std::move(call).Fail(copied.error());
  }
  std::move(call).Reply({}, {bytes}, *slot);
}

// Whoever holds the window's memory may still write there, so every hold ends before the call is answered: a peer that
// has its answers can commit.
void WriteToDevice(rpc::ServerCall call, std::shared_ptr<WindowTable::Window> window,
                   protocol::WindowRangeRequest range, StagingPool& staging, Executor& executor) {
  auto slot = staging.Acquire(call.deadline());
  if (!slot) return std::move(call).Fail(slot.error());
  const HostRange bytes = (*slot)->bytes().first(range.size);
  const std::shared_ptr<void> keep_alive = *slot;
  std::move(call).ReceivePayload(
      {bytes}, keep_alive,
      [window = std::move(window), range, bytes, slot = std::move(*slot), &executor](rpc::ServerCall done,
                                                                                     Result<void> received) mutable {
        if (!received) return std::move(done).Fail(received.error());
        rpc::RunOn(executor, std::move(done),
                   [window = std::move(window), range, bytes, slot = std::move(slot)](rpc::ServerCall last) mutable {
                     auto copied = CopyFromHost(SubRange(window->memory, range.offset, range.size), bytes);
                     window.reset();
                     slot.reset();
                     if (!copied) return std::move(last).Fail(copied.error());
                     std::move(last).Reply({});
                   });
      });
}

}  // namespace

void ServeWindows(rpc::RpcServer& server, WindowTable& windows, StagingPool& staging, ServingThreads threads) {
  using protocol::WindowRangeRequest;
  server.Handle<WindowRangeRequest>(protocol::kWindowRead, [&windows, &staging, threads](rpc::ServerCall call,
                                                                                         WindowRangeRequest range) {
    auto window = windows.Find(call.session(), range.window, range.offset, range.size, /*for_write=*/false);
    if (!window) return std::move(call).Fail(window.error());
    if (const auto* host = std::get_if<HostRange>(&window->memory)) {
      return std::move(call).Reply({}, {host->subspan(range.offset, range.size)}, window->keep_alive);
    }
    if (range.size > staging.slot_bytes()) {
      return std::move(call).Fail(Status(ErrorCode::INVALID_PARAMS,
                                         fmt::format("range of {} B is above {} B", range.size, staging.slot_bytes())));
    }
    rpc::RunOn(threads.stagers, std::move(call), [window = std::move(*window), range, &staging](rpc::ServerCall held) {
      ReplyFromDevice(std::move(held), window, range, staging);
    });
  });
  server.Handle<WindowRangeRequest>(
      protocol::kWindowWrite, [&windows, &staging, threads](rpc::ServerCall call, WindowRangeRequest range) {
        auto found = windows.Find(call.session(), range.window, range.offset, range.size, /*for_write=*/true);
        if (!found) return std::move(call).Fail(found.error());
        if (range.size != call.payload_bytes() || range.size > staging.slot_bytes()) {
          const Status mismatch(ErrorCode::INVALID_PARAMS,
                                fmt::format("{} B announced, {} B sent, at most {} B", range.size, call.payload_bytes(),
                                            staging.slot_bytes()));
          return std::move(call).Fail(mismatch);
        }
        auto window = std::make_shared<WindowTable::Window>(std::move(*found));
        if (const auto* host = std::get_if<HostRange>(&window->memory)) {
          const HostRange bytes = host->subspan(range.offset, range.size);
          return std::move(call).ReceivePayload({bytes}, std::move(window),
                                                [](rpc::ServerCall done, Result<void> received) {
                                                  if (!received) return std::move(done).Fail(received.error());
                                                  std::move(done).Reply({});
                                                });
        }
        rpc::RunOn(
            threads.stagers, std::move(call),
            [window = std::move(window), range, &staging, &executor = threads.executor](rpc::ServerCall held) mutable {
              WriteToDevice(std::move(held), std::move(window), range, staging, executor);
            });
      });
}

}  // namespace mooncake
