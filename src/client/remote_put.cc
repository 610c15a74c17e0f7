// Writing objects to other clients, and removing them there.
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

constexpr int kWriteRounds = 2;        // once more elsewhere when the chosen owner fails
constexpr size_t kGroupsInFlight = 4;  // requests on the wire at once to one owner
constexpr Duration kCloseBudget = std::chrono::seconds(1);

struct PutGroup : PendingReply {
  std::vector<RemoteObjects::Write*> writes;
  uint64_t bytes = 0;
  std::shared_ptr<StagingPool::Slot> slot;  // when a value is in device memory
};

}  // namespace

// Sends values to one owner, several requests at a time. A write that is left not done may be tried elsewhere.
class RemoteObjects::OwnerWriter {
 public:
  OwnerWriter(const Parts& parts, protocol::ClientAddress owner, Deadline deadline)
      : parts_(parts), owner_(std::move(owner)), deadline_(deadline), peer_(LinkTo(parts.peers, owner_)) {}

  void Add(Write& write) {
    if (!peer_) return Conclude(write, std::unexpected(peer_.error()));
    const uint64_t size = SizeOf(write.value);
    if (size > kInlineBytes) {
      large_.push_back(&write);
      return;
    }
    if (unsent_.empty() || unsent_.back()->bytes + size > kInlineBytes || unsent_.back()->writes.size() == kInlineKeys)
      unsent_.push_back(std::make_shared<PutGroup>());
    unsent_.back()->writes.push_back(&write);
    unsent_.back()->bytes += size;
    needs_slots_ |= !IsHost(write.value);
  }

  // Sends what needs no waiting.
  void Start() {
    while (!needs_slots_ && !unsent_.empty() && flying_.size() < kGroupsInFlight) SendNext();
  }
  bool has_more() const { return !unsent_.empty() || !large_.empty(); }

  void Finish() {
    while (!unsent_.empty() || !flying_.empty()) {
      if (unsent_.empty() || flying_.size() == kGroupsInFlight) {
        SettleOne();
      } else {
        SendNext();
      }
    }
    for (Write* write : large_) Conclude(*write, WriteLarge(*write));
  }

  // Set when somebody else should be tried: this owner, to be left out.
  const std::optional<Uuid>& failed() const { return failed_; }

 private:
  void Conclude(Write& write, Result<void> result) {
    if (!result && result.error().code() == ErrorCode::REPLICA_NUM_EXCEEDED) {
      write.held = write.stored_once = write.done = true;
      return;
    }
    write.done = true;
    if (!result) {
      const ErrorCode code = result.error().code();
      // Not this value's fault: somebody else may take it.
      if (code == ErrorCode::RPC_FAIL || code == ErrorCode::ILLEGAL_CLIENT || code == ErrorCode::NO_AVAILABLE_HANDLE ||
          code == ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS || code == ErrorCode::SHUTTING_DOWN) {
        write.done = false;
        failed_ = owner_.id;
      }
      result = Annotate(result.error(), fmt::format("key '{}' to {}", write.key, owner_.endpoint));
    }
    write.result = std::move(result);
  }

  Result<void> Stage(PutGroup& group) {
    group.slot = parts_.staging.TryAcquire();
    // Never wait for a slot while holding some: other calls may be doing the same.
    while (group.slot == nullptr && !flying_.empty()) SettleOne();
    if (group.slot == nullptr) group.slot = MC_TRY(parts_.staging.Acquire(deadline_));
    return {};
  }

  // The group's values as pieces of host memory.
  Result<std::vector<rpc::ConstSpan>> Gather(PutGroup& group) {
    std::vector<rpc::ConstSpan> payload;
    size_t slot_used = 0;
    for (const Write* write : group.writes) {
      if (SizeOf(write->value) == 0) continue;
      if (const auto* host = std::get_if<HostRange>(&write->value)) {
        payload.push_back(*host);
        continue;
      }
      if (group.slot == nullptr) MC_TRY(Stage(group));
      const HostRange part = group.slot->bytes().subspan(slot_used, SizeOf(write->value));
      slot_used += part.size();
      MC_TRY(CopyToHost(part, write->value));
      payload.push_back(part);
    }
    return payload;
  }

  void SendNext() {
    const auto group = std::move(unsent_.front());
    unsent_.pop_front();
    auto payload = Gather(*group);
    if (!payload) {
      for (Write* write : group->writes) Conclude(*write, std::unexpected(payload.error()));
      return;
    }
    protocol::PutRequest request;
    for (const Write* write : group->writes) {
      request.keys.emplace_back(write->key);
      request.sizes.push_back(SizeOf(write->value));
    }
    rpc::CallArguments arguments;
    arguments.payload = std::move(*payload);
    (*peer_)->CallAsync(protocol::kPeerPut, rpc::Encode(request), std::move(arguments), deadline_,
                        [group](Result<std::string> reply) { group->Complete(std::move(reply)); });
    flying_.push_back(group);
  }

  void SettleOne() {
    const auto group = std::move(flying_.front());
    flying_.pop_front();
    auto reply = [&]() -> Result<protocol::CodesReply> {
      const std::string body = MC_TRY(group->Wait());
      auto decoded = MC_TRY(rpc::Decode<protocol::CodesReply>(body));
      if (decoded.codes.size() == group->writes.size()) return decoded;
      return Error(ErrorCode::TRANSFER_FAIL, "{} results for {} keys", decoded.codes.size(), group->writes.size());
    }();
    for (size_t i = 0; i < group->writes.size(); ++i) {
      Result<void> result;
      if (!reply) {
        result = std::unexpected(reply.error());
      } else if (reply->codes[i] != 0) {
        result = std::unexpected(Status(static_cast<ErrorCode>(reply->codes[i]), reply->message));
      }
      Conclude(*group->writes[i], std::move(result));
    }
  }

  Result<void> WriteLarge(const Write& write) {
    const protocol::OpenWriteRequest request{std::string(write.key), SizeOf(write.value)};
    const auto opened = MC_TRY((*peer_)->Call<protocol::OpenReply>(protocol::kPeerOpenWrite, request, deadline_));
    if (opened.window == 0) return {};
    const RemoteWindow window = WindowOf(*peer_, owner_, opened);
    if (auto written = parts_.transport.Write(window, 0, write.value, deadline_); !written) {
      (*peer_)->CallAsync(protocol::kPeerCloseWindow, rpc::Encode(protocol::WindowRequest{opened.window}), {},
                          Deadline::After(kCloseBudget),
                          [](Result<std::string>) {});  // else the session's end closes it
      return written;
    }
    const auto reply = MC_TRY((*peer_)->Call<protocol::CodesReply>(protocol::kPeerCommitWrite,
                                                                   protocol::WindowRequest{opened.window}, deadline_));
    const int32_t code = reply.codes.size() == 1 ? reply.codes[0] : ToInt(ErrorCode::TRANSFER_FAIL);
    if (code != 0) return std::unexpected(Status(static_cast<ErrorCode>(code), reply.message));
    return {};
  }

  const Parts& parts_;
  const protocol::ClientAddress owner_;
  const Deadline deadline_;
  const Result<std::shared_ptr<rpc::RpcClient>> peer_;
  std::deque<std::shared_ptr<PutGroup>> unsent_;  // the last one is being filled
  std::deque<std::shared_ptr<PutGroup>> flying_;
  bool needs_slots_ = false;
  std::optional<Uuid> failed_;
  std::vector<Write*> large_;
};

void RemoteObjects::Put(std::span<Write> writes, Deadline deadline) {
  WriteRefs open;
  for (Write& write : writes) open.push_back(&write);
  std::vector<Uuid> exclude;
  for (int round = 0; round < kWriteRounds && !open.empty() && (round == 0 || !deadline.Passed()); ++round) {
    PutRound(open, exclude, deadline);
    std::erase_if(open, [](const Write* write) { return write->done; });
  }
}

void RemoteObjects::PutRound(const WriteRefs& writes, std::vector<Uuid>& exclude, Deadline deadline) {
  protocol::WriteRouteRequest request{.exclude = exclude};
  for (const Write* write : writes) {
    request.keys.push_back(KeyDigest::Of(write->key));
    request.sizes.push_back(SizeOf(write->value));
  }
  auto reply = parts_.master.Call<protocol::WriteRouteReply>(protocol::kWriteRoute, request, deadline);
  if (reply && reply->targets.size() != writes.size()) {
    reply = Error(ErrorCode::RPC_FAIL, "the master chose {} owners for {} keys", reply->targets.size(), writes.size());
  }
  std::map<int32_t, WriteRefs> by_owner;
  for (size_t i = 0; i < writes.size(); ++i) {
    Write& write = *writes[i];
    write.done = true;
    if (!reply) {
      write.result = std::unexpected(reply.error());
      continue;
    }
    const int32_t target = reply->targets[i];
    if (target == protocol::kTargetExists) {
      write.held = true;
    } else if (target < 0 || static_cast<size_t>(target) >= reply->clients.size()) {
      // After a failure the first owner's error says more than that there is no second one.
      if (write.result) {
        write.result = Error(ErrorCode::NO_AVAILABLE_CANDIDATE, "no client can take the {} B of key '{}'",
                             request.sizes[i], write.key);
      }
    } else {
      by_owner[target].push_back(&write);
    }
  }
  std::deque<OwnerWriter> writers;
  for (const auto& [target, refs] : by_owner) {
    OwnerWriter& writer = writers.emplace_back(parts_, reply->clients[target], deadline);
    for (Write* write : refs) writer.Add(*write);
  }
  FinishSideBySide(writers);
  for (const OwnerWriter& writer : writers) {
    if (writer.failed()) exclude.push_back(*writer.failed());
  }
  ConfirmHeld(writes, deadline);
}

// "Another client has it" is what the master believes. Success must mean that it can be read.
void RemoteObjects::ConfirmHeld(const WriteRefs& writes, Deadline deadline) {
  WriteRefs held;
  std::vector<std::string> keys;
  for (Write* write : writes) {
    if (!std::exchange(write->held, false)) continue;
    held.push_back(write);
    keys.emplace_back(write->key);
  }
  if (held.empty()) return;
  const auto confirmed = Confirm(keys, deadline);
  for (size_t i = 0; i < held.size(); ++i) {
    Write& write = *held[i];
    if (!confirmed[i]) {
      write.result = Annotate(confirmed[i].error(), fmt::format("key '{}' is said to be stored already", write.key));
    } else if (*confirmed[i] || write.stored_once) {
      write.result = {};  // what was stored and has left since was stored
    } else {
      write.result = Error(ErrorCode::REPLICA_IS_GONE, "key '{}' left its owner while it was put", write.key);
      write.done = false;  // nobody has it now: once more
    }
  }
}

// --- queries and removal ---

std::vector<Result<bool>> RemoteObjects::Exist(std::span<const std::string> keys, Deadline deadline) {
  std::vector<KeyDigest> digests;
  for (const auto& key : keys) digests.push_back(KeyDigest::Of(key));
  const auto lookup = Lookup(digests, deadline);
  std::vector<Result<bool>> results;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!lookup) {
      results.emplace_back(std::unexpected(lookup.error()));
      continue;
    }
    // A route to ourselves is stale: our own index was asked first.
    results.emplace_back(
        std::any_of(lookup->routes[i].begin(), lookup->routes[i].end(),
                    [&](const protocol::Route& route) { return lookup->clients[route.client].id != parts_.self; }));
  }
  return results;
}

Result<ObjectInfo> RemoteObjects::Size(const std::string& key, Deadline deadline) {
  const KeyDigest digest = KeyDigest::Of(key);
  const auto lookup = MC_TRY(Lookup({&digest, 1}, deadline));
  for (const auto& route : lookup.routes[0]) {
    if (lookup.clients[route.client].id != parts_.self)
      return ObjectInfo{route.size, static_cast<MemoryType>(route.type), false};
  }
  return std::unexpected(Status(ErrorCode::OBJECT_NOT_FOUND, {}));
}

// Sends each owner in `lookup` the keys it has; tells `answer` the code for each key and owner, or why there is none.
void RemoteObjects::AskOwners(const protocol::LookupReply& lookup, std::span<const std::string> keys, uint16_t method,
                              Deadline deadline, const std::function<void(size_t, const Result<int32_t>&)>& answer) {
  std::map<uint32_t, std::vector<size_t>> by_owner;
  for (size_t i = 0; i < keys.size(); ++i) {
    for (const auto& route : lookup.routes[i]) {
      if (lookup.clients[route.client].id != parts_.self) by_owner[route.client].push_back(i);
    }
  }
  std::deque<std::pair<const std::vector<size_t>*, PendingReply>> calls;  // side by side: one may be dead
  for (const auto& [owner, positions] : by_owner) {
    protocol::KeysRequest request;
    for (const size_t i : positions) request.keys.push_back(keys[i]);
    auto& call = calls.emplace_back();
    call.first = &positions;
    CallPeer(lookup.clients[owner], method, rpc::Encode(request), deadline, call.second);
  }
  for (auto& [asked, pending] : calls) {
    const std::vector<size_t>& positions = *asked;
    const auto reply = [&pending, &positions]() -> Result<protocol::CodesReply> {
      const std::string body = MC_TRY(pending.Wait());
      auto codes = MC_TRY(rpc::Decode<protocol::CodesReply>(body));
      if (codes.codes.size() == positions.size()) return codes;
      return Error(ErrorCode::RPC_FAIL, "{} results for {} keys", codes.codes.size(), positions.size());
    }();
    for (size_t k = 0; k < positions.size(); ++k) {
      answer(positions[k], reply ? Result<int32_t>(reply->codes[k]) : std::unexpected(reply.error()));
    }
  }
}

std::vector<Result<bool>> RemoteObjects::Confirm(std::span<const std::string> keys, Deadline deadline) {
  std::vector<Result<bool>> results(keys.size(), false);
  std::vector<KeyDigest> digests;
  for (const auto& key : keys) digests.push_back(KeyDigest::Of(key));
  const auto lookup = Lookup(digests, deadline);
  if (!lookup) {
    for (auto& result : results) result = std::unexpected(lookup.error());
    return results;
  }
  AskOwners(*lookup, keys, protocol::kPeerExist, deadline, [&](size_t i, const Result<int32_t>& code) {
    if (results[i] && *results[i]) return;  // one owner is enough
    if (!code) {
      results[i] = std::unexpected(code.error());
    } else if (*code == 0) {
      results[i] = true;
    }
  });
  return results;
}

std::vector<Result<void>> RemoteObjects::Remove(std::span<const std::string> keys, Deadline deadline) {
  std::vector<Result<void>> results(keys.size(), std::unexpected(Status(ErrorCode::OBJECT_NOT_FOUND, {})));
  std::vector<KeyDigest> digests;
  for (const auto& key : keys) digests.push_back(KeyDigest::Of(key));
  const auto lookup = Lookup(digests, deadline);
  if (!lookup) {
    for (auto& result : results) result = std::unexpected(lookup.error());
    return results;
  }
  AskOwners(*lookup, keys, protocol::kPeerRemove, deadline, [&](size_t i, const Result<int32_t>& code) {
    auto& result = results[i];
    // Removed anywhere and failed nowhere is removed.
    if (!code) {
      result = std::unexpected(code.error());
    } else if (*code == 0 && (result || result.error().code() == ErrorCode::OBJECT_NOT_FOUND)) {
      result = {};
    } else if (*code != 0 && *code != ToInt(ErrorCode::OBJECT_NOT_FOUND)) {
      result = std::unexpected(Status(static_cast<ErrorCode>(*code), {}));
    }
  });
  return results;
}

Result<uint64_t> RemoteObjects::RemoveAll(Deadline deadline) {
  const auto list = MC_TRY(
      parts_.master.Call<protocol::ListClientsReply>(protocol::kListClients, protocol::ListClientsRequest{}, deadline));
  std::deque<PendingReply> calls;  // side by side: one may be dead
  for (const auto& client : list.clients) {
    if (client.id == parts_.self || client.tiers.empty()) continue;
    CallPeer({client.id, client.endpoint}, protocol::kPeerRemoveAll, rpc::Encode(protocol::Empty{}), deadline,
             calls.emplace_back());
  }
  uint64_t removed = 0;
  Result<void> first_error;
  for (PendingReply& pending : calls) {
    const auto reply = [&pending]() -> Result<protocol::CountReply> {
      const std::string body = MC_TRY(pending.Wait());
      return rpc::Decode<protocol::CountReply>(body);
    }();
    if (reply) removed += reply->count;
    if (!reply && first_error) first_error = std::unexpected(reply.error());
  }
  if (!first_error) return std::unexpected(first_error.error());
  return removed;
}

void RemoteObjects::CallPeer(const protocol::ClientAddress& client, uint16_t method, std::string body,
                             Deadline deadline, PendingReply& reply) {
  const auto peer = LinkTo(parts_.peers, client);
  if (!peer) return reply.Complete(std::unexpected(peer.error()));
  (*peer)->CallAsync(method, std::move(body), {}, deadline,
                     [&reply](Result<std::string> answer) { reply.Complete(std::move(answer)); });
}

}  // namespace mooncake
