// A transport for tests of what stands above transports: copies within the process, between engines that are meant to
// be different processes, and does on request what a bad wire would.
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "transfer_engine/transport.h"
#include "transfer_engine/transport_context.h"

namespace mooncake {

// The processes that the fakes can reach: engines by generation. Outlives them.
class FakeNetwork {
 public:
  void Join(const Uuid& generation, RegionRegistry& regions) {
    std::lock_guard lock(mutex_);
    live_[generation] = &regions;
  }
  void Leave(const Uuid& generation) {
    std::lock_guard lock(mutex_);
    live_.erase(generation);
  }
  // What a wire does: finds the process, has it check the key, moves the bytes.
  Result<void> Carry(const TransferOperation& operation) {
    std::lock_guard lock(mutex_);
    const auto peer = live_.find(operation.target->generation);
    if (peer == live_.end()) return Error(ErrorCode::STALE_SEGMENT, "nobody of that generation is here");
    const bool write = operation.opcode == TransferOpcode::kWrite;
    const auto use = peer->second->FindByKey(operation.region.key, operation.target_address, operation.length(), write);
    if (!use) return std::unexpected(use.error());
    auto* const remote = reinterpret_cast<std::byte*>(operation.target_address);
    const HostRange local = std::get<HostRange>(operation.local);
    if (write) {
      std::memcpy(remote, local.data(), local.size());
    } else {
      std::memcpy(local.data(), remote, local.size());
    }
    return {};
  }

 private:
  std::mutex mutex_;
  std::map<Uuid, RegionRegistry*> live_;
};

class FakeTransport final : public Transport {
 public:
  struct Options {
    std::string name = "fake";
    bool listed = true;  // in the descriptor's protocols
  };
  FakeTransport(FakeNetwork& network, RegionRegistry& regions, const Uuid& generation)
      : FakeTransport(network, regions, generation, Options()) {}
  FakeTransport(FakeNetwork& network, RegionRegistry& regions, const Uuid& generation, Options options)
      : network_(network), generation_(generation), options_(std::move(options)) {
    network_.Join(generation_, regions);
  }
  ~FakeTransport() override {
    network_.Leave(generation_);
    for (TransferOperation& operation : TakeHeld()) operation.done(Error(ErrorCode::SHUTTING_DOWN, "closed"));
  }

  const char* name() const override { return options_.name.c_str(); }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor& target, const SegmentRegion& region) const override {
    if (reaches) return reaches(local, target, region);
    return IsHost(local) && region.key != 0;
  }
  Result<void> RegisterRegion(Region& region) override {
    if (refuse_region && refuse_region(region)) return Error(ErrorCode::TRANSFER_FAIL, "no room for a region");
    ++registered;
    return {};
  }
  void WithdrawRegion(const Region&) override { --registered; }
  void Describe(SegmentDescriptor& self) const override {
    if (options_.listed) self.protocols.push_back(options_.name);
  }
  void Submit(std::vector<TransferOperation> operations, Caller caller) override {
    submits += 1;
    if (caller == Caller::kWaits) waiting_submits += 1;
    for (TransferOperation& operation : operations) {
      carried += 1;
      if (hold) {
        std::lock_guard lock(mutex_);
        held_.push_back(std::move(operation));
        continue;
      }
      End(operation, on_operation ? on_operation(operation) : network_.Carry(operation));
    }
  }
  void Cancel(BatchId tag) override {
    canceled_tags += 1;
    std::vector<TransferOperation> ended;
    {
      std::lock_guard lock(mutex_);
      for (auto at = held_.begin(); at != held_.end();) {
        if (at->tag != tag) {
          ++at;
          continue;
        }
        ended.push_back(std::move(*at));
        at = held_.erase(at);
      }
    }
    for (TransferOperation& operation : ended) End(operation, Error(ErrorCode::TRANSFER_CANCELED, "canceled"));
  }
  void Fence(const Uuid& node) override { fenced.push_back(node); }

  // Those that came while `hold` was set.
  std::vector<TransferOperation> TakeHeld() {
    std::lock_guard lock(mutex_);
    return std::exchange(held_, {});
  }
  Result<void> Carry(const TransferOperation& operation) { return network_.Carry(operation); }
  // The contract lets the use go with the operation, after `done`.
  static void End(TransferOperation& operation, Result<void> result) {
    auto done = std::move(operation.done);
    operation.local_use.Release();
    done(std::move(result));
  }

  // Set before use.
  std::function<bool(const MemoryRange&, const SegmentDescriptor&, const SegmentRegion&)> reaches;
  std::function<bool(const Region&)> refuse_region;
  std::function<Result<void>(const TransferOperation&)> on_operation;  // instead of Carry
  std::atomic<bool> hold{false};

  std::atomic<int> registered{0};
  std::atomic<int> submits{0};
  std::atomic<int> waiting_submits{0};
  std::atomic<int> carried{0};
  std::atomic<int> canceled_tags{0};
  std::vector<Uuid> fenced;

 private:
  FakeNetwork& network_;
  const Uuid generation_;
  const Options options_;
  std::mutex mutex_;
  std::vector<TransferOperation> held_;
};

}  // namespace mooncake
