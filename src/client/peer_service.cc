// Handlers for peers.
#include "client/peer_service.h"

#include "client/object_io.h"
#include "protocol/methods.h"
#include "rpc/run_on.h"

namespace mooncake {
namespace {

using protocol::ObjectState;

struct Found {
  std::vector<ObjectState> objects;
  std::string message;
  std::vector<AllocationHandle> handles;  // of those to be sent
  bool on_device = false;
};

void FailCall(rpc::ServerCall call, ErrorCode code, std::string message) {
  std::move(call).Fail(Status(code, std::move(message)));
}

// Copies the blocks into the slot with one synchronisation. A block that cannot be read costs its own object only: a
// failure, or a miss when its device is gone.
std::vector<rpc::ConstSpan> StageOut(TieredBackend& backend, Found& found, HostRange slot) {
  std::vector<RangeCopy> copies;
  size_t offset = 0;
  for (const auto& handle : found.handles) {
    const size_t size = handle->data.size();
    copies.push_back({.target = slot.subspan(offset, size), .source = AsMemoryRange(handle->data)});
    offset += size;
  }
  CopyRanges(copies);
  std::vector<rpc::ConstSpan> payload;
  size_t next = 0;  // handles belong to the objects marked as sent, in order
  for (ObjectState& object : found.objects) {
    if (!object.sent) continue;
    const size_t k = next++;
    if (copies[k].result) {
      payload.push_back(std::get<HostRange>(copies[k].target));
      continue;
    }
    const Status& error = copies[k].result.error();
    const bool gone = backend.ForgetIfLost(*found.handles[k]->tier);
    if (!gone && found.message.empty()) found.message = error.message();
    object = ObjectState{};
    object.code = ToInt(gone ? ErrorCode::OBJECT_NOT_FOUND : error.code());
  }
  return payload;
}

}  // namespace

PeerService::PeerService(Parts parts)
    : parts_(parts),
      get_requests_(
          parts.metrics.GetCounter("mooncake_p2p_peer_read_remote_data_requests_total", "keys asked for by peers")),
      get_hits_(parts.metrics.GetCounter("mooncake_p2p_peer_read_remote_data_hits_total", "keys served to peers")),
      get_misses_(
          parts.metrics.GetCounter("mooncake_p2p_peer_read_remote_data_misses_total", "keys peers asked for in vain")),
      put_requests_(
          parts.metrics.GetCounter("mooncake_p2p_peer_write_remote_data_requests_total", "keys written by peers")) {}

void PeerService::Serve(rpc::RpcServer& server) {
  using namespace protocol;
  server.Handle<GetRequest>(kPeerGet,
                            [this](rpc::ServerCall call, GetRequest r) { Get(std::move(call), std::move(r)); });
  server.Handle<PutRequest>(kPeerPut,
                            [this](rpc::ServerCall call, PutRequest r) { Put(std::move(call), std::move(r)); });
  server.Handle<OpenReadRequest>(kPeerOpenRead,
                                 [this](rpc::ServerCall call, OpenReadRequest r) { OpenRead(std::move(call), r); });
  server.Handle<OpenWriteRequest>(kPeerOpenWrite, [this](rpc::ServerCall call, OpenWriteRequest request) {
    {
      std::lock_guard lock(mutex_);
      writes_.try_emplace(call.session(), SessionWrites{.node = call.peer().node, .windows = {}});
    }
    rpc::RunOn(parts_.threads.executor, std::move(call),
               [this, request = std::move(request)](rpc::ServerCall held) { OpenWrite(std::move(held), request); });
  });
  server.Handle<WindowRequest>(kPeerCommitWrite,
                               [this](rpc::ServerCall call, WindowRequest r) { CommitWrite(std::move(call), r); });
  server.Handle<WindowRequest>(kPeerCloseWindow, [this](rpc::ServerCall call, WindowRequest request) {
    CloseWindow(call.session(), request.window);
    std::move(call).Reply(rpc::Encode(Empty{}));
  });
  server.Handle<KeysRequest>(kPeerRemove, [this](rpc::ServerCall call, KeysRequest request) {
    rpc::RunOn(parts_.threads.executor, std::move(call),
               [this, request = std::move(request)](rpc::ServerCall held) { Remove(std::move(held), request); });
  });
  server.Handle<Empty>(kPeerRemoveAll, [this](rpc::ServerCall call, Empty) {
    rpc::RunOn(parts_.threads.executor, std::move(call), [this](rpc::ServerCall held) {
      const CountReply reply{parts_.backend.RemoveAll()};
      ReplyAnnounced(std::move(held), [body = rpc::Encode(reply)]() mutable { return std::move(body); });
    });
  });
  server.Handle<KeysRequest>(kPeerExist,
                             [this](rpc::ServerCall call, KeysRequest request) { Exist(std::move(call), request); });
  ServeWindows(server, windows_, parts_.staging, parts_.threads);
  server.OnSessionClosed([this](rpc::SessionId session) { CloseSession(session); });
}

void PeerService::CloseSession(rpc::SessionId session) {
  auto gone = std::make_shared<SessionWrites>();
  {
    std::lock_guard lock(mutex_);
    if (const auto writes = writes_.find(session); writes != writes_.end()) {
      *gone = std::move(writes->second);
      writes_.erase(writes);
    }
  }
  // Last: a window that OpenWrite opens from here on finds the session gone and is closed by it.
  windows_.CloseSession(session);
  if (gone->windows.empty()) return;
  // A writer that is taken for dead may still be writing one-sided: its blocks are free when it cannot any more.
  std::move_only_function<void()> fence = [this, gone] {
    parts_.engine.Fence(gone->node);
    gone->windows.clear();
  };
  if (!parts_.threads.executor.TrySubmit(fence)) fence();
}

Result<void> PeerService::OpenWindow(rpc::SessionId session, const AllocationHandle& handle, bool writable,
                                     protocol::OpenReply& reply) {
  const MemoryRange memory = AsMemoryRange(handle->data);
  std::shared_ptr<const void> hold = handle;
  RegionRegistry& regions = parts_.engine.regions();
  const uint64_t address = AddressOf(memory);
  const auto key = regions.Grant(address, SizeOf(memory), writable, handle);
  // An NPU's memory that this process does not lend goes over the RPC connection.
  if (!key && IsHost(memory)) return std::unexpected(key.error());
  if (key) {
    reply.address = address;
    reply.key = *key;
    hold = std::shared_ptr<const void>(handle.get(), [&regions, key = *key](const void*) { regions.Revoke(key); });
  }
  reply.window = MC_TRY(windows_.Open(session, {memory, std::move(hold), writable}));
  return {};
}

void PeerService::ReplyAnnounced(rpc::ServerCall call, std::move_only_function<std::string()> make_body) {
  auto shared = std::make_shared<rpc::ServerCall>(std::move(call));
  parts_.announcer.WhenDelivered([shared, make_body = std::move(make_body)](bool delivered) mutable {
    // The caller would take success as "everybody can see it now".
    if (!delivered) {
      return FailCall(std::move(*shared), ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS,
                      "done here, but there is no master to be told");
    }
    std::move(*shared).Reply(make_body());
  });
}

// --- reads ---

void PeerService::Get(rpc::ServerCall call, protocol::GetRequest request) {
  auto found = std::make_shared<Found>();
  uint64_t total = 0;
  for (const std::string& key : request.keys) {
    get_requests_.Add();
    ObjectState object;
    auto view = parts_.backend.Get(key);
    if (!view) {
      object.code = ToInt(view.error().code());
      get_misses_.Add();
      // The master sent the peer here, so the master is wrong about this key.
      if (view.error().code() == ErrorCode::OBJECT_NOT_FOUND) parts_.announcer.Mark(key);
    } else {
      get_hits_.Add();
      object.size = view->handle->data.size();
      object.version = view->version;
      object.type = static_cast<int32_t>(view->handle->data.type);
      object.sent = object.size <= kInlineBytes - total;
      if (object.sent) {
        total += object.size;
        found->on_device |= !IsHost(AsMemoryRange(view->handle->data));
        found->handles.push_back(std::move(view->handle));
      }
    }
    found->objects.push_back(object);
  }
  if (!found->on_device) {
    std::vector<rpc::ConstSpan> payload;
    for (const auto& handle : found->handles) payload.push_back(std::get<HostRange>(AsMemoryRange(handle->data)));
    std::string body = rpc::Encode(protocol::GetReply{found->objects, found->message});
    return std::move(call).Reply(std::move(body), std::move(payload), found);
  }
  rpc::RunOn(parts_.threads.stagers, std::move(call), [this, found, total](rpc::ServerCall held) {
    auto slot = parts_.staging.Acquire(held.deadline());
    if (!slot) return std::move(held).Fail(slot.error());
    auto payload = StageOut(parts_.backend, *found, (*slot)->bytes().first(total));
    std::move(held).Reply(rpc::Encode(protocol::GetReply{found->objects, found->message}), std::move(payload), *slot);
  });
}

void PeerService::OpenRead(rpc::ServerCall call, const protocol::OpenReadRequest& request) {
  auto view = parts_.backend.Get(request.key);
  if (!view) return std::move(call).Fail(view.error());
  protocol::OpenReply reply{.size = view->handle->data.size(), .type = static_cast<int32_t>(view->handle->data.type)};
  if (auto opened = OpenWindow(call.session(), view->handle, /*writable=*/false, reply); !opened)
    return std::move(call).Fail(opened.error());
  std::move(call).Reply(rpc::Encode(reply));
}

// --- writes ---

// Blocks of a put whose bytes are on their way.
struct PeerService::Incoming {
  protocol::PutRequest request;
  protocol::CodesReply reply;
  std::vector<AllocationHandle> handles;  // null where nothing is to be written
  std::vector<rpc::MutableSpan> spans;    // where the payload goes, in order
  std::shared_ptr<StagingPool::Slot> slot;
  std::vector<std::pair<size_t, HostRange>> staged;  // values for device memory, in the slot
  std::vector<std::byte> discarded;                  // values nobody wants

  void Refuse(size_t i, const Status& status) {
    reply.codes[i] = ToInt(status.code());
    if (reply.message.empty()) reply.message = status.message();
  }
};

void PeerService::Put(rpc::ServerCall call, protocol::PutRequest request) {
  uint64_t total = 0;
  bool fits = request.keys.size() == request.sizes.size();
  for (const uint64_t size : request.sizes) {
    fits = fits && size <= kInlineBytes - total;
    if (fits) total += size;
  }
  if (!fits || total != call.payload_bytes()) {
    std::string message =
        fmt::format("put of {} keys, {} sizes, {} B announced, {} B sent (at most {} B)", request.keys.size(),
                    request.sizes.size(), total, call.payload_bytes(), kInlineBytes);
    return FailCall(std::move(call), ErrorCode::INVALID_PARAMS, std::move(message));
  }
  auto incoming = std::make_shared<Incoming>();
  incoming->request = std::move(request);
  rpc::RunOn(parts_.threads.executor, std::move(call),
             [this, incoming](rpc::ServerCall held) { PreparePut(std::move(held), incoming); });
}

void PeerService::PreparePut(rpc::ServerCall call, const std::shared_ptr<Incoming>& incoming) {
  const auto& [keys, sizes] = std::tie(incoming->request.keys, incoming->request.sizes);
  incoming->reply.codes.assign(keys.size(), 0);
  incoming->handles.resize(keys.size());
  size_t staged_bytes = 0;
  size_t largest_discarded = 0;
  const Deadline room_wait = Deadline::After(kRoomWait);
  for (size_t i = 0; i < keys.size(); ++i) {
    put_requests_.Add();
    if (parts_.backend.RecordUse(keys[i])) {
      largest_discarded = std::max<size_t>(largest_discarded, sizes[i]);
      continue;
    }
    auto handle = parts_.backend.Allocate(sizes[i], std::nullopt, /*strict=*/false, room_wait);
    if (!handle) {
      incoming->Refuse(i, handle.error());
      largest_discarded = std::max<size_t>(largest_discarded, sizes[i]);
      continue;
    }
    if (!IsHost(AsMemoryRange((*handle)->data))) staged_bytes += sizes[i];
    incoming->handles[i] = std::move(*handle);
  }
  incoming->discarded.resize(largest_discarded);
  if (staged_bytes == 0) return ReceivePut(std::move(call), incoming);
  rpc::RunOn(parts_.threads.stagers, std::move(call), [this, incoming](rpc::ServerCall held) {
    auto slot = parts_.staging.Acquire(held.deadline());
    if (!slot) return std::move(held).Fail(slot.error());
    incoming->slot = std::move(*slot);
    ReceivePut(std::move(held), incoming);
  });
}

void PeerService::ReceivePut(rpc::ServerCall call, const std::shared_ptr<Incoming>& incoming) {
  const auto& [keys, sizes] = std::tie(incoming->request.keys, incoming->request.sizes);
  size_t slot_used = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (sizes[i] == 0) continue;
    if (incoming->handles[i] == nullptr) {
      incoming->spans.emplace_back(incoming->discarded.data(), sizes[i]);
      continue;
    }
    const MemoryRange block = AsMemoryRange(incoming->handles[i]->data);
    if (const auto* host = std::get_if<HostRange>(&block)) {
      incoming->spans.push_back(*host);
    } else {
      const HostRange part = incoming->slot->bytes().subspan(slot_used, sizes[i]);
      slot_used += sizes[i];
      incoming->spans.push_back(part);
      incoming->staged.emplace_back(i, part);
    }
  }
  const auto finish = [this, incoming](rpc::ServerCall done) {
    rpc::RunOn(parts_.threads.executor, std::move(done),
               [this, incoming](rpc::ServerCall held) { FinishPut(std::move(held), incoming); });
  };
  if (call.payload_bytes() == 0) return finish(std::move(call));
  std::move(call).ReceivePayload(incoming->spans, incoming, [finish](rpc::ServerCall done, Result<void> received) {
    if (!received) return std::move(done).Fail(received.error());
    finish(std::move(done));
  });
}

void PeerService::FinishPut(rpc::ServerCall call, const std::shared_ptr<Incoming>& incoming) {
  std::vector<RangeCopy> copies;
  for (const auto& [i, bytes] : incoming->staged) {
    copies.push_back({.target = AsMemoryRange(incoming->handles[i]->data), .source = bytes});
  }
  CopyRanges(copies);
  for (size_t k = 0; k < copies.size(); ++k) {
    if (copies[k].result) continue;
    const size_t i = incoming->staged[k].first;
    incoming->Refuse(i, copies[k].result.error());
    incoming->handles[i] = nullptr;
  }
  std::vector<size_t> stored;
  for (size_t i = 0; i < incoming->handles.size(); ++i) {
    if (incoming->handles[i] == nullptr) continue;
    stored.push_back(i);
    const auto committed =
        parts_.backend.Commit(incoming->request.keys[i], std::move(incoming->handles[i]), {.only_if_absent = true});
    if (!committed && committed.error().code() != ErrorCode::OBJECT_ALREADY_EXISTS)
      incoming->Refuse(i, committed.error());
  }
  ReplyAnnounced(std::move(call), [this, incoming, stored = std::move(stored)] {
    for (const size_t i : stored) {
      int32_t& code = incoming->reply.codes[i];
      if (code == 0 && !Kept(incoming->request.keys[i])) code = ToInt(ErrorCode::REPLICA_NUM_EXCEEDED);
    }
    return rpc::Encode(incoming->reply);
  });
}

void PeerService::OpenWrite(rpc::ServerCall call, const protocol::OpenWriteRequest& request) {
  protocol::OpenReply reply{.size = request.size};
  if (parts_.backend.RecordUse(request.key)) return std::move(call).Reply(rpc::Encode(reply));
  auto handle = parts_.backend.Allocate(request.size, std::nullopt, /*strict=*/false, Deadline::After(kRoomWait));
  if (!handle) return std::move(call).Fail(handle.error());
  reply.type = static_cast<int32_t>((*handle)->data.type);
  if (auto opened = OpenWindow(call.session(), *handle, /*writable=*/true, reply); !opened)
    return std::move(call).Fail(opened.error());
  bool session_lives = false;
  {
    std::lock_guard lock(mutex_);
    const auto writes = writes_.find(call.session());
    session_lives = writes != writes_.end();
    if (session_lives) writes->second.windows.emplace(reply.window, PendingWrite{request.key, std::move(*handle)});
  }
  if (!session_lives) windows_.Close(call.session(), reply.window);
  std::move(call).Reply(rpc::Encode(reply));
}

void PeerService::CommitWrite(rpc::ServerCall call, protocol::WindowRequest request) {
  PendingWrite write;
  {
    std::lock_guard lock(mutex_);
    const auto writes = writes_.find(call.session());
    if (writes != writes_.end()) {
      auto& windows = writes->second.windows;
      if (const auto found = windows.find(request.window); found != windows.end()) {
        write = std::move(found->second);
        windows.erase(found);
      }
    }
  }
  if (write.handle == nullptr) {
    return FailCall(std::move(call), ErrorCode::INVALID_WRITE,
                    fmt::format("no write window {} is open", request.window));
  }
  windows_.Close(call.session(), request.window);  // from here on nobody begins to write there
  // A peer that did not wait for the answers to its writes: they may still change the block.
  if (write.handle.use_count() > 1) {
    return FailCall(std::move(call), ErrorCode::INVALID_WRITE,
                    fmt::format("commit of window {} while writes to it are under way", request.window));
  }
  AllocationHandle(write.handle).reset();  // after those that held it, in memory order too
  const auto committed = parts_.backend.Commit(write.key, std::move(write.handle), {.only_if_absent = true});
  if (!committed && committed.error().code() != ErrorCode::OBJECT_ALREADY_EXISTS)
    return std::move(call).Fail(committed.error());
  ReplyAnnounced(std::move(call), [this, key = std::move(write.key)] {
    const int32_t code = Kept(key) ? 0 : ToInt(ErrorCode::REPLICA_NUM_EXCEEDED);
    return rpc::Encode(protocol::CodesReply{.codes = {code}, .message = {}});
  });
}

void PeerService::CloseWindow(rpc::SessionId session, uint64_t window) {
  windows_.Close(session, window);
  PendingWrite gone;
  std::lock_guard lock(mutex_);
  const auto writes = writes_.find(session);
  if (writes == writes_.end()) return;
  auto& windows = writes->second.windows;
  if (const auto found = windows.find(window); found != windows.end()) {
    gone = std::move(found->second);
    windows.erase(found);
  }
}

// Counts as a use. What is not here was announced wrongly or is leaving: the answer waits until the master knows.
void PeerService::Exist(rpc::ServerCall call, const protocol::KeysRequest& request) {
  protocol::CodesReply reply;
  bool all_here = true;
  for (const std::string& key : request.keys) {
    const bool here = parts_.backend.RecordUse(key);
    reply.codes.push_back(here ? 0 : ToInt(ErrorCode::OBJECT_NOT_FOUND));
    if (!here) parts_.announcer.Mark(key);
    all_here &= here;
  }
  if (all_here) return std::move(call).Reply(rpc::Encode(reply));
  ReplyAnnounced(std::move(call), [body = rpc::Encode(reply)]() mutable { return std::move(body); });
}

void PeerService::Remove(rpc::ServerCall call, const protocol::KeysRequest& request) {
  protocol::CodesReply reply;
  for (const std::string& key : request.keys) {
    const auto removed = parts_.backend.Delete(key);
    reply.codes.push_back(removed ? 0 : ToInt(removed.error().code()));
    if (!removed) parts_.announcer.Mark(key);  // the master believed that it was here
  }
  ReplyAnnounced(std::move(call), [body = rpc::Encode(reply)]() mutable { return std::move(body); });
}

}  // namespace mooncake
