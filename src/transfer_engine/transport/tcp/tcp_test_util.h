// A process's share of a transfer engine, by hand: everything a tcp transport is opened with.
#pragma once

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transfer_engine/transport/tcp/tcp_transport.h"

namespace mooncake::tcp {

inline Deadline Soon(Duration budget = std::chrono::seconds(60)) {
  return Deadline::After(budget);
}

class Node {
 public:
  explicit Node(const TcpOptions& tcp = {}, size_t io_threads = 2, const std::string& host = "127.0.0.1",
                Uuid generation = Uuid::Random())
      : generation_(generation), host_(host) {
    options_.io_threads = io_threads;
    auto server = rpc::RpcServer::Listen(io_, {.listen = {"127.0.0.1", 0}, .self = {.role = "test"}});
    MC_CHECK(server.has_value(), "{}", server.error().ToString());
    server_ = std::move(*server);
    auto transport = OpenTransport(tcp);
    MC_CHECK(transport.has_value(), "{}", transport.error().ToString());
    transport_ = std::move(*transport);
  }

  Result<std::unique_ptr<TcpTransport>> OpenTransport(const TcpOptions& tcp) {
    const TransportContext context{options_, regions_, topology_,   io_,   *server_,  links_,
                                   workers_, metrics_, generation_, host_, {host_, 1}};
    return TcpTransport::Open(context, tcp);
  }

  // Published to whoever knows the key; withdrawn with Unregister, or never.
  std::shared_ptr<Region> Register(std::span<std::byte> memory, RegionOptions options = {}) {
    auto region = regions_.Reserve(reinterpret_cast<uint64_t>(memory.data()), memory.size(), std::move(options));
    MC_CHECK(region.has_value() && region->has_value(), "cannot register");
    regions_.Publish(**region);
    return **region;
  }
  Result<void> Unregister(const std::shared_ptr<Region>& region, Deadline deadline) {
    MC_CHECK(regions_.Unpublish(region->address).has_value(), "not registered");
    transport_->WithdrawRegion(*region);
    return regions_.WaitUnused(region, deadline);
  }
  SegmentPtr Describe() const {
    auto segment = std::make_shared<SegmentDescriptor>();
    segment->name = "node";
    segment->generation = generation_;
    transport_->Describe(*segment);
    segment->regions = regions_.Published();
    return segment;
  }

  TcpTransport& transport() { return *transport_; }
  void CloseTransport() { transport_.reset(); }
  RegionRegistry& regions() { return regions_; }
  MetricRegistry& metrics() { return metrics_; }
  const Uuid& generation() const { return generation_; }

 private:
  const Uuid generation_;
  const std::string host_;
  TransferEngineOptions options_;
  RegionRegistry regions_;
  Topology topology_;
  rpc::IoPool io_{1};
  std::unique_ptr<rpc::RpcServer> server_;
  PeerLinks links_{io_, {.role = "test"}};
  Executor workers_{"test", 1, 64};
  MetricRegistry metrics_;
  std::unique_ptr<TcpTransport> transport_;
};

// Where the results of operations arrive.
class Results {
 public:
  explicit Results(size_t count) : results_(count) {}
  std::move_only_function<void(Result<void>)> At(size_t index) {
    return [this, index](Result<void> result) {
      std::lock_guard lock(mutex_);
      MC_CHECK(!results_[index], "operation {} ended twice", index);
      results_[index] = std::move(result);
      ++ended_;
      changed_.notify_all();
    };
  }
  size_t ended() {
    std::lock_guard lock(mutex_);
    return ended_;
  }
  // All of them, or whatever has ended within a generous time: a missing one is an INTERNAL_ERROR.
  const std::vector<std::optional<Result<void>>>& Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, Soon().time(), [&] { return ended_ == results_.size(); });
    for (auto& result : results_) {
      if (!result) result = Error(ErrorCode::INTERNAL_ERROR, "has not ended");
    }
    return results_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t ended_ = 0;
  std::vector<std::optional<Result<void>>> results_;
};

struct Job {
  TransferOpcode opcode = TransferOpcode::kRead;
  std::span<std::byte> local;
  SegmentPtr target;
  SegmentRegion region;
  uint64_t address = 0;
  BatchId tag = 1;
  Deadline deadline = Soon();

  TransferOperation With(std::move_only_function<void(Result<void>)> done) const {
    TransferOperation operation;
    operation.opcode = opcode;
    operation.local = local;
    operation.target = target;
    operation.region = region;
    operation.target_address = address;
    operation.tag = tag;
    operation.deadline = deadline;
    operation.done = std::move(done);
    return operation;
  }
};

inline void Submit(TcpTransport& transport, TransferOperation operation, Caller caller = Caller::kGoesOn) {
  std::vector<TransferOperation> operations;
  operations.push_back(std::move(operation));
  transport.Submit(std::move(operations), caller);
}

inline Result<void> RunJob(TcpTransport& transport, const Job& job) {
  Results results(1);
  Submit(transport, job.With(results.At(0)), Caller::kWaits);
  return *results.Wait()[0];
}

}  // namespace mooncake::tcp
