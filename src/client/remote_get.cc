// Reading objects of other clients.
#include <algorithm>
#include <deque>
#include <map>

#include "client/remote_call.h"
#include "client/remote_objects.h"
#include "client/side_by_side.h"
#include "protocol/methods.h"
#include "protocol/peer_messages.h"

namespace mooncake {
namespace {

constexpr int kReadRounds = 3;         // look-ups per get: the route may be stale, the owner may be dead
constexpr size_t kGroupsInFlight = 8;  // requests on the wire at once to one owner
constexpr size_t kGroupsWithSlots =
    2;  // the same when each holds a staging slot: an owner that hangs keeps few of them
constexpr Duration kCloseBudget = std::chrono::seconds(1);

// Keys asked of one owner in one request, and what became of them.
struct GetGroup : PendingReply {
  std::vector<RemoteObjects::Read*> reads;
  uint64_t expected_bytes = 0;
  std::shared_ptr<StagingPool::Slot> slot;  // when a target is device memory
  // Filled by the reply's sink, on an I/O thread, before completion.
  std::optional<protocol::GetReply> reply;
  struct Staged {
    RemoteObjects::Read* read;
    HostRange bytes;
    MemoryRange target;
  };
  std::vector<Staged> staged;
  std::vector<std::byte> discarded;

  Result<std::vector<rpc::MutableSpan>> Place(std::string_view body, uint64_t payload_bytes);
};

// Decides where each value of the reply goes: its target, the staging slot, or nowhere when the target refuses it.
Result<std::vector<rpc::MutableSpan>> GetGroup::Place(std::string_view body, uint64_t payload_bytes) {
  reply = MC_TRY(rpc::Decode<protocol::GetReply>(body));
  if (reply->objects.size() != reads.size())
    return Error(ErrorCode::TRANSFER_FAIL, "{} objects for {} keys", reply->objects.size(), reads.size());
  uint64_t total = 0;
  uint64_t largest = 0;
  for (const auto& object : reply->objects) {
    if (!object.sent || object.code != 0) continue;
    if (object.size > payload_bytes - total)
      return Error(ErrorCode::TRANSFER_FAIL, "sizes exceed the {} B sent", payload_bytes);
    total += object.size;
    largest = std::max(largest, object.size);
  }
  if (total != payload_bytes) return Error(ErrorCode::TRANSFER_FAIL, "{} B sent, sizes say {} B", payload_bytes, total);
  std::vector<rpc::MutableSpan> spans;
  size_t slot_used = 0;
  for (size_t i = 0; i < reads.size(); ++i) {
    const auto& object = reply->objects[i];
    if (!object.sent || object.code != 0) continue;
    RemoteObjects::Read& read = *reads[i];
    auto target = read.target(object.size);
    if (target && SizeOf(*target) != object.size) target = Error(ErrorCode::INTERNAL_ERROR, "target of another size");
    if (!target) {
      read.result = std::unexpected(target.error());
      read.done = true;
      discarded.resize(largest);
      if (object.size > 0) spans.emplace_back(discarded.data(), object.size);
      continue;
    }
    read.result = ObjectInfo{object.size, static_cast<MemoryType>(object.type), /*local=*/false};
    if (object.size == 0) continue;
    if (const auto* host = std::get_if<HostRange>(&*target)) {
      spans.push_back(*host);
      continue;
    }
    if (slot == nullptr || slot->bytes().size() - slot_used < object.size)
      return Error(ErrorCode::TRANSFER_FAIL, "objects outgrew the staging slot");
    const HostRange part = slot->bytes().subspan(slot_used, object.size);
    slot_used += object.size;
    spans.push_back(part);
    staged.push_back({&read, part, *target});
  }
  return spans;
}

}  // namespace

Result<protocol::LookupReply> RemoteObjects::Lookup(std::span<const KeyDigest> keys, Deadline deadline) {
  protocol::LookupRequest request;
  request.keys.assign(keys.begin(), keys.end());
  auto reply = MC_TRY(parts_.master.Call<protocol::LookupReply>(protocol::kLookup, request, deadline));
  bool sound = reply.routes.size() == keys.size();
  for (const auto& routes : reply.routes) {
    for (const auto& route : routes) sound = sound && route.client < reply.clients.size();
  }
  if (!sound)
    return Error(ErrorCode::RPC_FAIL, "the master's look-up reply does not match the {} keys asked for", keys.size());
  return reply;
}

void RemoteObjects::Get(std::span<Read> reads, Deadline deadline) {
  ReadRefs open;
  for (Read& read : reads) open.push_back(&read);
  for (int round = 0; round < kReadRounds && !open.empty() && !deadline.Passed(); ++round) {
    GetRound(open, deadline);
    std::erase_if(open, [](const Read* read) { return read->done; });
  }
}

// Asks one owner for keys, several requests at a time.
class RemoteObjects::OwnerReader {
 public:
  OwnerReader(const Parts& parts, protocol::ClientAddress owner, Deadline deadline)
      : parts_(parts), owner_(std::move(owner)), deadline_(deadline), peer_(LinkTo(parts.peers, owner_)) {}

  // `expected_bytes` is what the master thinks; the owner's reply decides.
  void Add(Read& read, uint64_t expected_bytes) {
    if (!peer_) return Fail(read, peer_.error());
    if (expected_bytes > kInlineBytes) {
      large_.push_back(&read);
      return;
    }
    if (unsent_.empty() || unsent_.back()->expected_bytes + expected_bytes > kInlineBytes ||
        unsent_.back()->reads.size() == kInlineKeys)
      unsent_.push_back(std::make_shared<GetGroup>());
    unsent_.back()->reads.push_back(&read);
    unsent_.back()->expected_bytes += expected_bytes;
    needs_slots_ |= read.to_device;
  }

  // Sends what needs no waiting.
  void Start() {
    while (!needs_slots_ && !unsent_.empty() && flying_.size() < kGroupsInFlight) SendNext();
  }
  bool has_more() const { return !unsent_.empty() || !large_.empty(); }

  // Sends what is left, waits for everything, fetches large objects.
  void Finish() {
    while (has_more_groups()) {
      if (unsent_.empty() || flying_.size() == (needs_slots_ ? kGroupsWithSlots : kGroupsInFlight)) {
        SettleOne();
      } else {
        SendNext();
      }
    }
    for (Read* read : large_) ReadLarge(*read);
  }

 private:
  bool has_more_groups() const { return !unsent_.empty() || !flying_.empty(); }

  void Fail(Read& read, const Status& status) {
    read.result = Annotate(status, fmt::format("key '{}' from {}", read.key, owner_.endpoint));
    read.failed.insert(owner_.id);
  }

  void SendNext() {
    const auto group = std::move(unsent_.front());
    unsent_.pop_front();
    const bool to_device =
        std::any_of(group->reads.begin(), group->reads.end(), [](const Read* read) { return read->to_device; });
    if (to_device) {
      group->slot = parts_.staging.TryAcquire();
      // Never wait for a slot while holding some: other calls may be doing the same.
      while (group->slot == nullptr && !flying_.empty()) SettleOne();
      if (group->slot == nullptr) {
        auto slot = parts_.staging.Acquire(deadline_);
        if (!slot) {
          for (Read* read : group->reads) Fail(*read, slot.error());
          return;
        }
        group->slot = std::move(*slot);
      }
    }
    protocol::GetRequest request;
    for (const Read* read : group->reads) request.keys.emplace_back(read->key);
    rpc::CallArguments arguments;
    arguments.sink = [group](std::string_view body, uint64_t payload_bytes) {
      return group->Place(body, payload_bytes);
    };
    (*peer_)->CallAsync(protocol::kPeerGet, rpc::Encode(request), std::move(arguments), deadline_,
                        [group](Result<std::string> reply) { group->Complete(std::move(reply)); });
    flying_.push_back(group);
  }

  void SettleOne() {
    const auto group = std::move(flying_.front());
    flying_.pop_front();
    auto body = group->Wait();
    if (body && !group->reply) {  // no payload came, so the sink was not asked
      if (auto placed = group->Place(*body, 0); !placed) body = std::unexpected(placed.error());
    }
    if (!body) {
      for (Read* read : group->reads) Fail(*read, body.error());
      return;
    }
    std::vector<RangeCopy> copies;
    for (const auto& staged : group->staged) copies.push_back({.target = staged.target, .source = staged.bytes});
    CopyRanges(copies);
    for (size_t i = 0; i < copies.size(); ++i) {
      if (!copies[i].result) group->staged[i].read->result = std::unexpected(copies[i].result.error());
    }
    for (size_t i = 0; i < group->reads.size(); ++i)
      Conclude(*group->reads[i], group->reply->objects[i], *group->reply);
  }

  void Conclude(Read& read, const protocol::ObjectState& object, const protocol::GetReply& reply) {
    if (object.code != 0) {
      // A stale route is a miss, not a fault: the owner corrects the master, the next round asks again.
      const auto code = static_cast<ErrorCode>(object.code);
      read.result = std::unexpected(Status(code, code == ErrorCode::OBJECT_NOT_FOUND ? std::string() : reply.message));
      read.failed.insert(owner_.id);
    } else if (!object.sent) {
      large_.push_back(&read);
    } else {
      read.done = true;
    }
  }

  void ReadLarge(Read& read) {
    auto opened = (*peer_)->Call<protocol::OpenReply>(protocol::kPeerOpenRead,
                                                      protocol::OpenReadRequest{std::string(read.key)}, deadline_);
    if (!opened) return Fail(read, opened.error());
    Result<void> result;
    if (auto target = read.target(opened->size); !target) {
      result = std::unexpected(target.error());
      read.done = true;
    } else {
      result = parts_.transport.Read(WindowOf(*peer_, owner_, *opened), 0, *target, deadline_);
    }
    (*peer_)->CallAsync(protocol::kPeerCloseWindow, rpc::Encode(protocol::WindowRequest{opened->window}), {},
                        Deadline::After(kCloseBudget), [](Result<std::string>) {});  // else the session's end closes it
    if (!result) {
      if (read.done) read.result = std::unexpected(result.error());
      return read.done ? void() : Fail(read, result.error());
    }
    read.result = ObjectInfo{opened->size, static_cast<MemoryType>(opened->type), /*local=*/false};
    read.done = true;
  }

  const Parts& parts_;
  const protocol::ClientAddress owner_;
  const Deadline deadline_;
  const Result<std::shared_ptr<rpc::RpcClient>> peer_;
  std::deque<std::shared_ptr<GetGroup>> unsent_;  // the last one is being filled
  std::deque<std::shared_ptr<GetGroup>> flying_;
  bool needs_slots_ = false;
  std::vector<Read*> large_;
};

// One look-up, then one attempt at the first owner of each key that has not failed before.
void RemoteObjects::GetRound(const ReadRefs& reads, Deadline deadline) {
  std::vector<KeyDigest> digests;
  for (const Read* read : reads) digests.push_back(KeyDigest::Of(read->key));
  const auto lookup = Lookup(digests, deadline);
  if (!lookup) {
    for (Read* read : reads) {
      read->result = std::unexpected(lookup.error());
      read->done = true;
    }
    return;
  }
  std::map<uint32_t, std::vector<std::pair<Read*, uint64_t>>> by_owner;
  for (size_t i = 0; i < reads.size(); ++i) {
    const auto& routes = lookup->routes[i];
    const auto route = std::find_if(routes.begin(), routes.end(), [&](const protocol::Route& r) {
      const Uuid& owner = lookup->clients[r.client].id;
      return owner != parts_.self && !reads[i]->failed.contains(owner);
    });
    if (route == routes.end()) {
      reads[i]->done = true;  // a miss, or the error of the owners tried so far
    } else {
      by_owner[route->client].emplace_back(reads[i], route->size);
    }
  }
  std::deque<OwnerReader> readers;
  for (const auto& [owner, wanted] : by_owner) {
    OwnerReader& reader = readers.emplace_back(parts_, lookup->clients[owner], deadline);
    for (const auto& [read, size] : wanted) reader.Add(*read, size);
  }
  FinishSideBySide(readers);
}

}  // namespace mooncake
