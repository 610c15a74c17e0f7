// Tables of transfers and pieces, and what becomes of both.
#include "transfer_engine/transport/ascend_rdma/slot_lender.h"

#include <algorithm>

#include "common/check.h"
#include "common/exhaustion.h"
#include "protocol/methods.h"

namespace mooncake::bridge {

using staged::LeaseAnswer;
using staged::LeaseReply;
using staged::LeaseRequest;

namespace {

constexpr size_t kBlockingQueue = 65536;

std::vector<Transport*> Named(const std::vector<Transport*>& wires, std::string_view name) {
  std::vector<Transport*> named;
  std::ranges::copy_if(wires, std::back_inserter(named), [&](Transport* wire) { return wire->name() == name; });
  return named;
}

Status Canceled(std::string_view why) {
  return Status(ErrorCode::TRANSFER_CANCELED, std::string(why));
}

}  // namespace

// The peers, as the lane sees them.
class SlotLender::Wire final : public Transport {
 public:
  explicit Wire(SlotLender& lender) : lender_(lender) {}
  const char* name() const override { return "lease"; }
  bool Reaches(const MemoryRange&, const SegmentDescriptor&, const SegmentRegion&) const override { return true; }
  void Submit(std::vector<TransferOperation> operations, Caller) override { lender_.Lend(std::move(operations)); }
  void Cancel(BatchId tag) override { lender_.TakeBack(tag); }

 private:
  SlotLender& lender_;
};

SlotLender::SlotLender(Parts parts, Options options)
    : parts_(std::move(parts)),
      options_(options),
      over_tcp_(!Named(parts_.wires, "tcp").empty()),
      to_fence_(Named(parts_.wires, "rdma")),
      wire_(std::make_unique<Wire>(*this)) {}

SlotLender::~SlotLender() {
  Join();
  MC_CHECK(pieces_.empty(), "{} pieces are lent at the end", pieces_.size());
}

void SlotLender::Serve(rpc::RpcServer& server) {
  server.Handle<LeaseRequest>(protocol::kLease,
                              [weak = weak_from_this()](rpc::ServerCall call, const LeaseRequest& request) {
                                if (const auto self = weak.lock()) return self->Serve(std::move(call), request);
                                std::move(call).Fail(Status(ErrorCode::SHUTTING_DOWN, "NPU memory is closed"));
                              });
  server.OnSessionClosed([weak = weak_from_this()](rpc::SessionId session) {
    if (const auto self = weak.lock()) self->SessionClosed(session);
  });
}

// --- calls ---

void SlotLender::Serve(rpc::ServerCall call, const LeaseRequest& request) {
  if (request.target != parts_.generation) {
    return std::move(call).Fail(Status(
        ErrorCode::STALE_SEGMENT,
        fmt::format("process {} is meant, this is {}", request.target.ToString(), parts_.generation.ToString())));
  }
  if (request.opens) {
    if (const auto opened = Open(call, request); !opened) return std::move(call).Fail(opened.error());
  }
  Effects effects;
  {
    std::lock_guard lock(mutex_);
    Lease* const lease = Find(call.session(), request.id);
    if (lease == nullptr || lease->calls.size() >= options_.calls_per_lease) {
      effects.failures.emplace_back(
          std::move(call),
          Status(ErrorCode::INVALID_PARAMS, lease == nullptr ? fmt::format("there is no transfer {}", request.id)
                                                             : fmt::format("{} calls wait", lease->calls.size())));
    } else {
      const LeaseId id = sessions_.at(call.session()).at(request.id);
      for (const uint64_t piece : request.returned) {
        if (lease->lent.erase(piece) > 0) EndPiece(piece, {}, false, effects);
      }
      if (request.closes) {
        EndLent(*lease, request.unsure, effects);
        Cancel(id, *lease, effects);
      }
      lease->calls.push_back(std::move(call));
      Match(*lease, effects);
      EraseIfOver(id);
    }
  }
  Run(std::move(effects));
}

Result<void> SlotLender::Open(const rpc::ServerCall& call, const LeaseRequest& request) {
  if (request.length == 0) return Error(ErrorCode::INVALID_PARAMS, "a transfer of 0 B");
  RegionRegistry::Use use =
      MC_TRY(parts_.regions.FindByKey(request.key, request.address, request.length, request.write));
  if (!use.region().IsNpu() || !use.region().published.staged) {
    return Error(ErrorCode::NOT_SUPPORTED_TRANSPORT, "memory at {:#x} is not staged", request.address);
  }
  const LeaseId id = MC_TRY(Insert(call, request, use));
  const int32_t device_id = use.region().options.device_id;
  const AscendUnifiedPointer at{device_id, static_cast<DeviceAddress>(request.address)};
  auto peer = std::make_shared<SegmentDescriptor>();
  peer->name = "peer " + call.peer_address();
  peer->generation = call.peer().node;
  TransferOperation operation;
  operation.opcode = request.write ? TransferOpcode::kRead : TransferOpcode::kWrite;  // as this process sees it
  operation.local = NpuRange{at, request.length, parts_.npu()};
  operation.local_use = std::move(use);
  operation.target = std::move(peer);
  operation.region.key = id;  // the wire is told
  operation.tag = id;
  const auto most = std::chrono::duration_cast<std::chrono::microseconds>(options_.lease_max).count();
  operation.deadline =
      Deadline::After(std::chrono::microseconds(std::min<uint64_t>(request.timeout_us, static_cast<uint64_t>(most))));
  operation.done = [weak = weak_from_this(), id](Result<void> result) {
    if (const auto self = weak.lock()) self->Ended(id, std::move(result));
  };
  // Unregistered a moment ago, by one who did not see it.
  if (!operation.local_use.wanted()) {
    operation.local_use.Release();
    operation.done(Error(ErrorCode::ADDRESS_NOT_REGISTERED, "memory at {:#x} is being unregistered", request.address));
    return {};
  }
  if (Lane* const lane = parts_.find(device_id); lane != nullptr) {
    Start(id, lane, std::move(operation));
  } else {
    OpenLane(id, device_id, std::move(operation));
  }
  return {};
}

Result<SlotLender::LeaseId> SlotLender::Insert(const rpc::ServerCall& call, const LeaseRequest& request,
                                               const RegionRegistry::Use& use) {
  std::lock_guard lock(mutex_);
  if (closed_) return Error(ErrorCode::SHUTTING_DOWN, "the transfer engine is being closed");
  auto& session = sessions_[call.session()];
  if (session.size() >= options_.leases_per_session) {
    return Error(ErrorCode::TOO_MANY_REQUESTS, "{} transfers of NPU memory on one connection", session.size());
  }
  const LeaseId id = ++last_;
  if (!session.emplace(request.id, id).second) {
    return Error(ErrorCode::INVALID_PARAMS, "transfer {} was opened before", request.id);
  }
  Lease lease;
  lease.session = call.session();
  lease.id = request.id;
  lease.node = call.peer().node;
  lease.region = use.region().address;
  leases_.emplace(id, std::move(lease));
  return id;
}

void SlotLender::OpenLane(LeaseId id, int32_t device_id, TransferOperation operation) {
  auto shared = std::make_shared<TransferOperation>(std::move(operation));
  std::move_only_function<void()> work = [self = shared_from_this(), id, device_id, shared] {
    const auto lane = self->parts_.open(device_id);
    if (lane) return self->Start(id, *lane, std::move(*shared));
    shared->local_use.Release();
    shared->done(std::unexpected(lane.error()));
  };
  if (Block(work)) return;
  shared->local_use.Release();
  shared->done(Error(ErrorCode::TOO_MANY_REQUESTS, "too many peers ask for memory of NPU {}", device_id));
}

void SlotLender::Start(LeaseId id, Lane* lane, TransferOperation operation) {
  {
    std::lock_guard lock(mutex_);
    const auto lease = leases_.find(id);
    // From here on whoever gives up tells the lane, and the lane hears of the operation first or ends it at once.
    if (!closed_ && lease != leases_.end() && !lease->second.giving_up) {
      lease->second.lane = lane;
      std::vector<BridgedOperation> one;
      one.push_back({.operation = std::move(operation), .wire = wire_.get()});
      return lane->Submit(std::move(one));
    }
  }
  operation.local_use.Release();
  operation.done(std::unexpected(Canceled("its peer or its memory is gone")));
}

void SlotLender::SessionClosed(rpc::SessionId session) {
  Effects effects;
  {
    std::lock_guard lock(mutex_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) return;
    const auto ids = std::move(found->second);
    sessions_.erase(found);
    for (const auto& [theirs, id] : ids) {
      Lease& lease = leases_.at(id);
      lease.gone = true;
      std::ranges::move(lease.calls, std::back_inserter(effects.dropped));
      lease.calls.clear();
      Cancel(id, lease, effects);
      EndLent(lease, true, effects);
      EraseIfOver(id);
    }
  }
  Run(std::move(effects));
}

void SlotLender::Withdraw(const Region& region) {
  Effects effects;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, lease] : leases_) {
      if (lease.region != region.address || lease.result) continue;
      lease.why = Status(ErrorCode::ADDRESS_NOT_REGISTERED,
                         fmt::format("memory [{:#x}, +{}) is being unregistered", region.address, region.length));
      Cancel(id, lease, effects);
    }
  }
  Run(std::move(effects));
}

void SlotLender::Close() {
  std::vector<rpc::SessionId> sessions;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    for (const auto& [session, leases] : sessions_) sessions.push_back(session);
  }
  for (const rpc::SessionId session : sessions) SessionClosed(session);
}

void SlotLender::Join() {
  std::call_once(blocking_once_, [] {});  // none any more
  if (blocking_ != nullptr) blocking_->Stop();
}

bool SlotLender::Block(std::move_only_function<void()>& work) {
  const auto started = CatchExhaustion([this]() -> Result<void> {
    std::call_once(blocking_once_, [this] { blocking_ = std::make_unique<Executor>("mc-lender", 1, kBlockingQueue); });
    return {};
  });
  return started && blocking_ != nullptr && blocking_->TrySubmit(work);
}

size_t SlotLender::leases() const {
  std::lock_guard lock(mutex_);
  return leases_.size();
}

size_t SlotLender::lent() const {
  std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::ranges::count_if(pieces_, [](const auto& piece) { return piece.second.lent; }));
}

// --- the lane ---

void SlotLender::Lend(std::vector<TransferOperation> operations) {
  Effects effects;
  for (TransferOperation& operation : operations) {
    const HostRange slot = std::get<HostRange>(operation.local);
    Piece piece{.operation = std::move(operation)};
    piece.lease = piece.operation.region.key;
    if (over_tcp_) {
      const bool fills = piece.operation.opcode == TransferOpcode::kRead;
      const auto key = parts_.regions.Grant(reinterpret_cast<uint64_t>(slot.data()), slot.size(), fills, nullptr);
      if (!key) {
        effects.endings.push_back({std::move(piece), std::unexpected(key.error())});
        continue;
      }
      piece.key = *key;
    }
    std::lock_guard lock(mutex_);
    const auto lease = leases_.find(piece.lease);
    if (lease == leases_.end() || lease->second.giving_up) {
      effects.endings.push_back({std::move(piece), std::unexpected(Canceled("the peer does not want it any more"))});
      continue;
    }
    const uint64_t id = ++last_;
    piece.node = lease->second.node;
    pieces_.emplace(id, std::move(piece));
    lease->second.ready.push_back(id);
    Match(lease->second, effects);
  }
  Run(std::move(effects));
}

// Of a failed operation. What nobody has been told of is off the wire; the rest is when it is returned, or taken back
// when the lane does not wait any longer.
void SlotLender::TakeBack(BatchId tag) {
  Effects effects;
  {
    std::lock_guard lock(mutex_);
    const auto of_tag = [tag](const auto& entry) {
      return entry.second.operation.tag == tag || entry.second.lease == tag;
    };
    const auto piece = std::ranges::find_if(pieces_, of_tag);
    if (piece == pieces_.end()) return;
    const LeaseId id = piece->second.lease;
    const auto lease = leases_.find(id);
    if (lease == leases_.end()) return;
    lease->second.giving_up = true;
    while (!lease->second.ready.empty()) {
      EndPiece(lease->second.ready.front(), std::unexpected(Canceled("the transfer has failed")), false, effects);
      lease->second.ready.pop_front();
    }
    Match(lease->second, effects);
  }
  Run(std::move(effects));
}

void SlotLender::Ended(LeaseId id, Result<void> result) {
  Effects effects;
  {
    std::lock_guard lock(mutex_);
    const auto found = leases_.find(id);
    if (found == leases_.end()) return;
    Lease& lease = found->second;
    if (!result && lease.why) result = std::unexpected(*lease.why);
    lease.result = std::move(result);
    lease.giving_up = true;
    // Not returned although the lane has waited for it.
    EndLent(lease, true, effects);
    Match(lease, effects);
    EraseIfOver(id);
  }
  Run(std::move(effects));
}

// --- with the lock ---

SlotLender::Lease* SlotLender::Find(rpc::SessionId session, uint64_t id) {
  const auto of_session = sessions_.find(session);
  if (of_session == sessions_.end()) return nullptr;
  const auto lease = of_session->second.find(id);
  return lease == of_session->second.end() ? nullptr : &leases_.at(lease->second);
}

LeaseReply SlotLender::Describe(uint64_t id, const Piece& piece, const Lease& lease) const {
  const HostRange slot = std::get<HostRange>(piece.operation.local);
  LeaseReply reply{.answer = static_cast<uint8_t>(LeaseAnswer::kPiece),
                   .message = {},
                   .piece = id,
                   .offset = piece.operation.target_address,
                   .length = slot.size(),
                   .address = reinterpret_cast<uint64_t>(slot.data()),
                   .key = piece.key,
                   .rkeys = {}};
  const SegmentRegion& ring = lease.lane->published();
  if (ring.rkeys.empty()) return reply;
  // The rows of the slot alone.
  const uint64_t step = ring.mr_piece_bytes == 0 ? ring.length : ring.mr_piece_bytes;
  const uint64_t first = (reply.address - ring.address) / step;
  const uint64_t last = (reply.address + reply.length - 1 - ring.address) / step;
  reply.region_address = ring.address + first * step;
  reply.region_length = std::min(ring.address + ring.length, ring.address + (last + 1) * step) - reply.region_address;
  reply.mr_piece_bytes = ring.mr_piece_bytes;
  reply.rkeys.assign(ring.rkeys.begin() + static_cast<ptrdiff_t>(first),
                     ring.rkeys.begin() + static_cast<ptrdiff_t>(last + 1));
  return reply;
}

void SlotLender::Match(Lease& lease, Effects& effects) {
  while (!lease.calls.empty()) {
    LeaseReply reply;
    if (lease.result) {
      reply.answer = static_cast<uint8_t>(LeaseAnswer::kEnded);
      if (!*lease.result) {
        reply.code = ToInt(lease.result->error().code());
        reply.message = lease.result->error().message();
      }
      lease.told = true;
    } else if (!lease.ready.empty()) {
      const uint64_t id = lease.ready.front();
      lease.ready.pop_front();
      Piece& piece = pieces_.at(id);
      piece.lent = true;
      lease.lent.insert(id);
      reply = Describe(id, piece, lease);
    } else if (lease.giving_up && !lease.lent.empty()) {
      reply.answer = static_cast<uint8_t>(LeaseAnswer::kWait);
    } else {
      return;
    }
    effects.replies.emplace_back(std::move(lease.calls.front()), std::move(reply));
    lease.calls.pop_front();
  }
}

void SlotLender::Cancel(LeaseId id, Lease& lease, Effects& effects) {
  lease.giving_up = true;
  while (!lease.ready.empty()) {
    EndPiece(lease.ready.front(), std::unexpected(Canceled("the transfer is given up")), false, effects);
    lease.ready.pop_front();
  }
  if (lease.lane != nullptr && !lease.result) effects.cancels.emplace_back(lease.lane, id);
}

void SlotLender::EndLent(Lease& lease, bool fence, Effects& effects) {
  for (const uint64_t piece : std::exchange(lease.lent, {})) {
    EndPiece(piece, std::unexpected(Canceled("the peer has not used it")), fence, effects);
  }
}

void SlotLender::EndPiece(uint64_t id, Result<void> result, bool fence, Effects& effects) {
  auto piece = pieces_.extract(id);
  MC_CHECK(!piece.empty(), "piece {} ended twice", id);
  effects.endings.push_back({std::move(piece.mapped()), std::move(result), fence});
}

void SlotLender::EraseIfOver(LeaseId id) {
  const auto lease = leases_.find(id);
  if (lease == leases_.end() || !lease->second.result || !(lease->second.told || lease->second.gone)) return;
  if (const auto session = sessions_.find(lease->second.session); session != sessions_.end()) {
    session->second.erase(lease->second.id);
  }
  leases_.erase(lease);
}

// --- without it ---

void SlotLender::Run(Effects effects) {
  for (auto& [lane, id] : effects.cancels) lane->Cancel(id);
  for (auto& ending : effects.endings) EndNow(std::move(ending));
  for (auto& [call, reply] : effects.replies) std::move(call).Reply(rpc::Encode(reply));
  for (auto& [call, why] : effects.failures) std::move(call).Fail(why);
}

// The lane gets the slot back when no request of the peer is served there or can begin to be.
void SlotLender::EndNow(Effects::Ending ending) {
  const uint64_t key = ending.piece.key;
  auto shared = std::make_shared<Effects::Ending>(std::move(ending));
  auto end = [self = shared_from_this(), shared] {
    auto done = [shared] { shared->piece.operation.done(std::move(shared->result)); };
    if (!shared->fence || self->to_fence_.empty()) return done();
    self->Fenced(shared->piece.node, std::move(done));
  };
  if (key == 0 || parts_.regions.Revoke(key, end)) end();
}

void SlotLender::Fenced(const Uuid& node, std::move_only_function<void()> then) {
  std::move_only_function<void()> work = [self = shared_from_this(), node, then = std::move(then)]() mutable {
    for (Transport* const wire : self->to_fence_) wire->Fence(node);
    then();
  };
  if (!Block(work)) work();
}

}  // namespace mooncake::bridge
