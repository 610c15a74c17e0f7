// One process's half of an RDMA transfer, for tests: a transport with a control server, links and registered memory.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "protocol/methods.h"
#include "transfer_engine/transport/rdma/rdma_transport.h"

namespace mooncake::rdma {

// Memory of whole pages, zeroed, apart from everything else.
class TestMemory {
 public:
  explicit TestMemory(size_t bytes) : bytes_(bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) std::abort();
    data_ = static_cast<std::byte*>(at);
  }
  ~TestMemory() { munmap(data_, bytes_); }
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(data_); }
  HostRange Range(size_t offset, size_t bytes) const { return {data_ + offset, bytes}; }
  void Fill(size_t offset, size_t bytes, uint32_t seed) const {
    for (size_t i = 0; i < bytes; ++i) data_[offset + i] = ByteAt(i, seed);
  }
  // Bytes that differ from what Fill with this seed has written.
  size_t Wrong(size_t offset, size_t bytes, uint32_t seed) const {
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; ++i) wrong += data_[offset + i] != ByteAt(i, seed);
    return wrong;
  }

 private:
  static std::byte ByteAt(size_t i, uint32_t seed) {
    const uint64_t mixed = (i + 1) * 0x9e3779b97f4a7c15ULL + seed * 0xbf58476d1ce4e5b9ULL;
    return static_cast<std::byte>(mixed >> 56);
  }
  std::byte* data_ = nullptr;
  size_t bytes_;
};

// Operations under way: counts their ends and keeps their results.
class TransferGroup {
 public:
  ~TransferGroup() { EXPECT_TRUE(AllEnded()) << "transfers outlive their test"; }

  std::move_only_function<void(Result<void>)> Add() {
    std::lock_guard lock(mutex_);
    results_.emplace_back();
    return [this, index = results_.size() - 1](Result<void> result) {
      std::lock_guard inner(mutex_);
      EXPECT_FALSE(results_[index].has_value()) << "an operation ended twice";
      results_[index] = std::move(result);
      ended_at_ = std::chrono::steady_clock::now();
      changed_.notify_all();
    };
  }
  bool Wait(Duration limit = std::chrono::seconds(120)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return Ended() == results_.size(); });
  }
  bool WaitFor(size_t ended, Duration limit = std::chrono::seconds(120)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return Ended() >= ended; });
  }
  bool AllEnded() {
    std::lock_guard lock(mutex_);
    return Ended() == results_.size();
  }
  size_t ended() {
    std::lock_guard lock(mutex_);
    return Ended();
  }
  // Of the operations in the order of Add; all have ended.
  std::vector<Result<void>> Results() {
    std::lock_guard lock(mutex_);
    std::vector<Result<void>> results;
    for (auto& result : results_) results.push_back(result.value());
    return results;
  }
  TimePoint ended_at() {
    std::lock_guard lock(mutex_);
    return ended_at_;
  }

 private:
  size_t Ended() const {
    size_t ended = 0;
    for (const auto& result : results_) ended += result.has_value();
    return ended;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<Result<void>>> results_;
  TimePoint ended_at_{};
};

struct TestNodeOptions {
  std::vector<std::string> devices;
  RdmaOptions rdma{};
  const Verbs* verbs = nullptr;  // null: libibverbs
  Duration default_timeout = std::chrono::seconds(60);
  size_t worker_queue = 1024;
};

class TestNode {
 public:
  explicit TestNode(TestNodeOptions options) : options_(std::move(options)) {
    engine_options_.default_timeout = options_.default_timeout;
    std::string names;
    for (const std::string& device : options_.devices) {
      names += (names.empty() ? "\"" : ",\"") + device + "\"";
    }
    topology_ = Topology::Parse("{\"cpu:0\": [[" + names + "], []]}").value();
    identity_ = {.role = protocol::kRoleEngine, .node = Uuid::Random(), .software_version = "test"};
    workers_ = std::make_unique<Executor>("workers", 2, options_.worker_queue);
    io_ = std::make_unique<rpc::IoPool>(2);
    server_ = rpc::RpcServer::Listen(*io_, {.listen = {"127.0.0.1", 0}, .self = identity_}).value();
    links_ = std::make_unique<PeerLinks>(*io_, identity_);
    server_->Handle(protocol::kEngineWatch, [this](rpc::ServerCall call) {
      std::lock_guard lock(mutex_);
      if (!closed_) watches_.push_back(std::move(call));
    });
  }
  ~TestNode() { Close(); }
  TestNode(const TestNode&) = delete;
  TestNode& operator=(const TestNode&) = delete;

  Result<void> Open() {
    const TransportContext context{.options = engine_options_,
                                   .regions = regions_,
                                   .topology = topology_,
                                   .io = *io_,
                                   .server = *server_,
                                   .links = *links_,
                                   .workers = *workers_,
                                   .metrics = metrics_,
                                   .generation = identity_.node,
                                   .bind_host = "127.0.0.1",
                                   .advertised = {"127.0.0.1", server_->port()}};
    const Verbs* verbs = options_.verbs != nullptr ? options_.verbs : MC_TRY(LoadVerbs());
    transport_ = MC_TRY(RdmaTransport::OpenOn(context, *verbs, options_.rdma));
    server_->Start();
    return {};
  }

  // As an engine ends: transfers first, then the connections.
  void Close() {
    if (io_ == nullptr) return;
    transport_.reset();
    links_->Close();
    server_->Stop();
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      watches_.clear();
    }
    workers_->Stop();
    server_.reset();
    links_.reset();
    io_.reset();
  }

  Result<void> Register(const TestMemory& memory, RegionOptions options = {}) {
    std::shared_ptr<Region> region =
        MC_TRY(regions_.Reserve(memory.address(), memory.size(), std::move(options))).value();
    if (const auto registered = transport_->RegisterRegion(*region); !registered) {
      regions_.Abandon(region);
      return registered;
    }
    regions_.Publish(region);
    return {};
  }
  // As the engine does; the transport has withdrawn it on return.
  Result<void> Unregister(const TestMemory& memory, Deadline deadline) {
    std::shared_ptr<Region> region = MC_TRY(regions_.Unpublish(memory.address())).value();
    transport_->WithdrawRegion(*region);
    return regions_.WaitUnused(region, deadline);
  }

  SegmentPtr Describe() const {
    auto segment = std::make_shared<SegmentDescriptor>();
    segment->name = fmt::format("127.0.0.1:{}", server_->port());
    segment->generation = identity_.node;
    segment->control = {"127.0.0.1", server_->port()};
    segment->topology = topology_.ToJson();
    transport_->Describe(*segment);
    segment->regions = regions_.Published(&segment->revision);
    return segment;
  }

  TransferOperation Operation(TransferOpcode opcode, HostRange local, const SegmentPtr& target, uint64_t address,
                              Duration limit, std::move_only_function<void(Result<void>)> done) {
    TransferOperation operation;
    operation.opcode = opcode;
    operation.local = local;
    if (auto use = regions_.Find(reinterpret_cast<uint64_t>(local.data()), local.size())) {
      operation.local_use = std::move(*use);
    }
    operation.target = target;
    if (const SegmentRegion* region = target->Find(address, local.size())) operation.region = *region;
    operation.target_address = address;
    operation.tag = tag;
    operation.deadline = Deadline::After(limit);
    operation.done = std::move(done);
    return operation;
  }
  void Start(TransferGroup& group, TransferOpcode opcode, HostRange local, const SegmentPtr& target, uint64_t address,
             Duration limit = std::chrono::seconds(100)) {
    std::vector<TransferOperation> operations;
    operations.push_back(Operation(opcode, local, target, address, limit, group.Add()));
    transport_->Submit(std::move(operations), Caller::kGoesOn);
  }
  Result<void> Transfer(TransferOpcode opcode, HostRange local, const SegmentPtr& target, uint64_t address,
                        Duration limit = std::chrono::seconds(100)) {
    TransferGroup group;
    Start(group, opcode, local, target, address, limit);
    if (!group.Wait(std::chrono::seconds(240))) std::abort();  // its memory could not be let go of
    return group.Results().front();
  }

  RdmaTransport& transport() { return *transport_; }
  RegionRegistry& regions() { return regions_; }
  MetricRegistry& metrics() { return metrics_; }
  const Uuid& generation() const { return identity_.node; }
  uint64_t Count(const std::string& name) { return metrics_.GetCounter(name, "").Value(); }

  BatchId tag = 1;  // of the operations made

 private:
  const TestNodeOptions options_;
  TransferEngineOptions engine_options_;
  Topology topology_;
  rpc::Identity identity_;
  MetricRegistry metrics_;
  RegionRegistry regions_;
  std::unique_ptr<Executor> workers_;
  std::unique_ptr<rpc::IoPool> io_;
  std::unique_ptr<rpc::RpcServer> server_;
  std::unique_ptr<PeerLinks> links_;
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<rpc::ServerCall> watches_;  // never answered
  std::unique_ptr<RdmaTransport> transport_;
};

}  // namespace mooncake::rdma
