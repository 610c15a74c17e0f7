// What transports are opened with, for their tests: one process's worth of it, and operations that tell their end.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "transfer_engine/transport_context.h"

namespace mooncake {

// Declared before the transports that use it.
struct TestContext {
  explicit TestContext(size_t workers = 2, size_t queue = 1024) : executor("test-worker", workers, queue) {
    auto listening = rpc::RpcServer::Listen(io, {.listen = {"127.0.0.1", 0}, .self = self});
    EXPECT_TRUE(listening) << listening.error().ToString();
    server = std::move(*listening);
  }
  TransportContext Context() {
    return {.options = options,
            .regions = regions,
            .topology = topology,
            .io = io,
            .server = *server,
            .links = links,
            .workers = executor,
            .metrics = metrics,
            .generation = self.node,
            .bind_host = "127.0.0.1",
            .advertised = {"127.0.0.1", server->port()}};
  }
  // Reserved, handed to the transport and published, as the engine does.
  std::shared_ptr<Region> Register(Transport& transport, HostRange memory, RegionOptions region_options = {}) {
    auto region = regions.Reserve(reinterpret_cast<uint64_t>(memory.data()), memory.size(), std::move(region_options));
    EXPECT_TRUE(region) << region.error().ToString();
    const auto registered = transport.RegisterRegion(**region.value());
    EXPECT_TRUE(registered) << registered.error().ToString();
    regions.Publish(**region);
    return **region;
  }
  void Unregister(Transport& transport, const std::shared_ptr<Region>& region) {
    EXPECT_TRUE(regions.Unpublish(region->address));
    transport.WithdrawRegion(*region);
    const auto unused = regions.WaitUnused(region, Deadline::After(std::chrono::seconds(60)));
    EXPECT_TRUE(unused) << unused.error().ToString();
  }
  SegmentPtr Describe(const Transport& transport) const {
    SegmentDescriptor segment{.name = "segment-" + self.node.ToString(), .generation = self.node};
    segment.regions = regions.Published(&segment.revision);
    transport.Describe(segment);
    return std::make_shared<const SegmentDescriptor>(std::move(segment));
  }

  TransferEngineOptions options;
  rpc::Identity self{.role = "engine", .node = Uuid::Random(), .software_version = "test"};
  RegionRegistry regions;
  Topology topology;
  rpc::IoPool io{1};
  std::unique_ptr<rpc::RpcServer> server;
  PeerLinks links{io, self};
  Executor executor;
  MetricRegistry metrics;
};

// Counts operations and keeps how they ended. Outlives them.
class Ends {
 public:
  std::move_only_function<void(Result<void>)> Next() {
    std::lock_guard lock(mutex_);
    const size_t index = ends_.size();
    ends_.emplace_back();
    return [this, index](Result<void> result) {
      std::lock_guard guard(mutex_);
      EXPECT_FALSE(ends_[index].has_value()) << "operation " << index << " ended twice";
      ends_[index] = std::move(result);
      ++ended_;
      changed_.notify_all();
    };
  }
  // All results so far, once that many operations have ended.
  std::vector<Result<void>> Take(size_t count) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(120), [&] { return ended_ >= count; })) {
      ADD_FAILURE() << ended_ << " of " << count << " operations ended";
      std::abort();
    }
    std::vector<Result<void>> results;
    for (const auto& end : ends_) {
      if (end) results.push_back(*end);
    }
    return results;
  }
  size_t ended() {
    std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::optional<Result<void>>> ends_;
  size_t ended_ = 0;
};

inline TransferOperation MakeOperation(TransferOpcode opcode, MemoryRange local, SegmentPtr target, uint64_t address,
                                       Ends& ends) {
  TransferOperation operation;
  operation.opcode = opcode;
  const SegmentRegion* const region = target->Find(address, SizeOf(local));
  if (region != nullptr) operation.region = *region;
  operation.local = local;
  operation.target = std::move(target);
  operation.target_address = address;
  operation.deadline = Deadline::After(std::chrono::seconds(60));
  operation.done = ends.Next();
  return operation;
}

inline std::vector<TransferOperation> One(TransferOperation operation) {
  std::vector<TransferOperation> operations;
  operations.push_back(std::move(operation));
  return operations;
}

// Its result, waited for.
inline Result<void> Do(Transport& transport, TransferOpcode opcode, MemoryRange local, const SegmentPtr& target,
                       uint64_t address, Caller caller = Caller::kWaits) {
  Ends ends;
  transport.Submit(One(MakeOperation(opcode, local, target, address, ends)), caller);
  return ends.Take(1).front();
}

// Closed until opened: holds whoever passes.
class Gate {
 public:
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    ++came_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void AwaitCame(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return came_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  size_t came_ = 0;
};

}  // namespace mooncake
