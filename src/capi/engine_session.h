// An engine as applications of the Python module use it: transfers to peers named in each call, batches under numbers
// of their own, managed buffers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capi/managed_buffers.h"
#include "capi/open_targets.h"
#include "transfer_engine/transfer_engine.h"

namespace mooncake {

// One run of bytes: of local memory, and of the target's as the target sees it.
struct TransferPiece {
  uint64_t local = 0;
  uint64_t remote = 0;
  uint64_t length = 0;  // 0: the addresses do not matter
};

struct TransferCall {
  std::string target;  // as OpenSegment takes it
  TransferOpcode opcode = TransferOpcode::kRead;
  std::vector<TransferPiece> pieces;     // may be empty
  std::optional<TransferNotify> notify;  // after all of the data is in place
};

// Every call from any thread. Calls that block say so; each is over when the engine's default timeout has passed, plus
// 1 ns for each byte. What a call returned for, it has let go of.
class EngineSession {
 public:
  // Asked now and then while a call waits: true makes it give up.
  using Interrupted = std::function<bool()>;

  static Result<std::shared_ptr<EngineSession>> Open(TransferEngineOptions options, ManagedBufferOptions buffers = {});
  // No call may be under way.
  ~EngineSession();
  EngineSession(const EngineSession&) = delete;
  EngineSession& operator=(const EngineSession&) = delete;

  // Calls that wait for transfers end soon and later ones fail, both with SHUTTING_DOWN or TRANSFER_CANCELED. Blocks
  // until no call is under way, at most until the deadline; false: some still are.
  bool Close(Deadline deadline);

  TransferEngine& engine() { return *engine_; }
  // Lives on when the session ends.
  std::shared_ptr<TransferEngine> Share() const { return engine_; }

  // --- transfers, which block ---
  // TRANSFER_CANCELED when interrupted; the pieces that had not ended are canceled and drained before.
  Result<void> Transfer(const TransferCall& call, const Interrupted& interrupted = {});

  // --- transfers that go on ---
  // A number above 0. Blocks for looking up the target only.
  Result<uint64_t> Begin(const TransferCall& call);
  // True: done, and the number is free. False: under way. TRANSFER_TIMEOUT: the number stays known and says so again.
  // Other errors: failed, and the number is free; INVALID_PARAMS for one that is unknown.
  Result<bool> Check(uint64_t number);
  // Until all are done or one failed: then the others are canceled and drained. Frees all of them, but none of them
  // when interrupted. Blocks.
  Result<void> WaitAll(std::span<const uint64_t> numbers, const Interrupted& interrupted = {});

  // --- memory ---
  Result<void> Register(uint64_t address, uint64_t length, std::string_view location = "*");
  Result<void> RegisterAll(std::span<const uint64_t> addresses, std::span<const uint64_t> lengths,
                           std::string_view location = "*");
  Result<void> Unregister(uint64_t address);
  Result<void> UnregisterAll(std::span<const uint64_t> addresses);
  ManagedBuffers& buffers() { return buffers_; }
  // True for memory that the processor cannot read: a registered region of an NPU.
  bool IsDeviceMemory(uint64_t address, uint64_t length);

  // --- peers, which block ---
  // Address of the first region in the peer's segment (regions are sorted by address).
  Result<uint64_t> FirstBufferAddress(const std::string& target);
  Result<void> Probe(const std::string& target);
  // See TransferEngine::Explain; of the call's first piece.
  Result<std::string> Explain(const TransferCall& call);

 private:
  class Batch;
  class Running;
  struct Begun {
    BatchId batch = kInvalidBatch;
    OpenTargets::Use target;
  };

  EngineSession(std::shared_ptr<TransferEngine> engine, Duration timeout, ManagedBufferOptions buffers);

  Result<void> Enter();
  void Leave();
  bool closing() const;
  Deadline DeadlineOf(const TransferCall& call) const;
  Result<std::vector<TransferRequest>> RequestsOf(const TransferCall& call, SegmentId target) const;
  // Opens the target and hands the pieces over; the notify of a call without bytes is sent at once. The batch may be
  // empty.
  Result<void> Submit(const TransferCall& call, Batch& batch, Caller caller);
  Result<void> WaitFor(Batch& batch, const Interrupted& interrupted);
  std::optional<Begun> TakeNumber(uint64_t number);
  void RememberTimeout(uint64_t number);

  const std::shared_ptr<TransferEngine> engine_;
  const Duration timeout_;
  OpenTargets targets_;
  ManagedBuffers buffers_;

  mutable std::mutex mutex_;
  std::condition_variable left_;
  size_t running_ = 0;
  bool closing_ = false;
  std::unordered_set<BatchId> waited_for_;  // by Transfer
  uint64_t last_number_ = 0;
  std::unordered_map<uint64_t, Begun> begun_;  // by Begin
  std::unordered_set<uint64_t> timed_out_;     // numbers whose batch is freed already
  std::deque<uint64_t> timed_out_order_;       // the oldest are forgotten
};

}  // namespace mooncake
