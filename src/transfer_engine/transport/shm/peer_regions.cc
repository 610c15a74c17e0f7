// Connecting, asking for regions, giving them back; all of it on the loop's thread.
#include "transfer_engine/transport/shm/peer_regions.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

namespace mooncake::shm {

PeerRegions::PeerRegions(EventLoop& loop, Executor& workers, Options options, Callbacks callbacks)
    : loop_(loop), workers_(workers), options_(options), callbacks_(std::move(callbacks)) {}

PeerRegions::~PeerRegions() = default;

std::shared_ptr<MappedRegion> PeerRegions::FindOrAwait(TransferOperation& operation) {
  const SegmentDescriptor& target = *operation.target;
  const uint64_t id = operation.region.*options_.id;
  std::optional<Status> refused;
  {
    std::lock_guard lock(mutex_);
    auto& peer = peers_[target.generation];
    if (peer == nullptr) {
      peer = std::make_unique<Peer>();
      peer->generation = target.generation;
      peer->name = target.name;
      peer->socket_name = target.*options_.socket;
    }
    if (const auto found = peer->regions.find(id); found != peer->regions.end()) return found->second;
    if (stopped_) {
      refused = Status(ErrorCode::SHUTTING_DOWN, "the transfer engine is closed");
    } else if (waiting_count_ >= options_.max_waiting) {
      refused = Status(ErrorCode::TRANSFER_FAIL,
                       fmt::format("{} transfers wait for memory of other processes already", waiting_count_));
    } else {
      const auto [waiting, added] = peer->waiting.try_emplace(id);
      if (added) {
        peer->to_ask.push_back(id);
        peer->first_local.insert_or_assign(id, operation.local);
      }
      waiting->second.push_back(std::move(operation));
      ++waiting_count_;
    }
  }
  if (refused) {
    EndOperation(operation, std::unexpected(std::move(*refused)));
  } else {
    loop_.Wake();
  }
  return nullptr;
}

void PeerRegions::Resolve(TransferOperation operation, const std::shared_ptr<MappedRegion>& region,
                          std::vector<PieceCopy>& copies) {
  const auto remote = region->At(operation.target_address, operation.length());
  if (!remote) {
    EndOperation(operation, std::unexpected(remote.error()));
    return;
  }
  copies.push_back({std::move(operation), *remote, region});
}

void PeerRegions::End(Leftovers leftovers) {
  for (auto& [operation, why] : leftovers.ended) EndOperation(operation, std::unexpected(std::move(why)));
}

void PeerRegions::EndWaiting(Peer& peer, const Status& why, Leftovers& leftovers) {
  for (auto& [id, operations] : peer.waiting) {
    waiting_count_ -= operations.size();
    for (TransferOperation& operation : operations) leftovers.ended.emplace_back(std::move(operation), why);
  }
  peer.waiting.clear();
  peer.first_local.clear();
  peer.to_ask.clear();
}

void PeerRegions::Cancel(BatchId tag) {
  Leftovers leftovers;
  {
    std::lock_guard lock(mutex_);
    for (auto& [generation, peer] : peers_) {
      for (auto& [id, operations] : peer->waiting) {
        waiting_count_ -= std::erase_if(operations, [&](TransferOperation& operation) {
          if (operation.tag != tag) return false;
          leftovers.ended.emplace_back(std::move(operation),
                                       Status(ErrorCode::TRANSFER_CANCELED, "canceled by the application"));
          return true;
        });
      }
    }
  }
  End(std::move(leftovers));
}

TimePoint PeerRegions::Expire(Leftovers& leftovers) {
  const TimePoint now = std::chrono::steady_clock::now();
  TimePoint next = TimePoint::max();
  for (auto& [generation, peer] : peers_) {
    for (auto& [id, operations] : peer->waiting) {
      waiting_count_ -= std::erase_if(operations, [&](TransferOperation& operation) {
        if (operation.deadline.time() > now) {
          next = std::min(next, operation.deadline.time());
          return false;
        }
        leftovers.ended.emplace_back(
            std::move(operation), Status(ErrorCode::TRANSFER_TIMEOUT,
                                         fmt::format("process '{}' did not hand out its memory in time", peer->name)));
        return true;
      });
    }
  }
  return next;
}

TimePoint PeerRegions::Tick() {
  Leftovers leftovers;
  std::vector<std::pair<Uuid, Status>> failed;
  TimePoint next = TimePoint::max();
  {
    std::lock_guard lock(mutex_);
    for (auto& [generation, peer] : peers_) {
      if (auto asked = Ask(*peer); !asked) failed.emplace_back(generation, std::move(asked.error()));
    }
    next = Expire(leftovers);
  }
  for (const auto& [generation, why] : failed) Drop(generation, why);
  End(std::move(leftovers));
  return next;
}

Result<void> PeerRegions::Connect(Peer& peer) {
  auto socket = ConnectTo(peer.socket_name);
  if (!socket) return Annotate(socket.error(), fmt::format("process '{}' of this host", peer.name));
  const Credentials& owner = (*socket)->peer();
  if (geteuid() != 0 && !MayShare(owner, options_.any_user)) {
    return Error(ErrorCode::TRANSFER_FAIL, "process {} that answers for '{}' belongs to user {}", owner.pid, peer.name,
                 owner.uid);
  }
  Message hello;
  hello.kind = Kind::kHello;
  hello.sender = options_.generation;
  hello.expected = peer.generation;
  if ((*socket)->Send(hello) != Socket::Sent::kYes) {
    return Error(ErrorCode::TRANSFER_FAIL, "process {} ('{}') does not listen", owner.pid, peer.name);
  }
  MC_TRY(loop_.Watch((*socket)->fd(), [this, generation = peer.generation] { OnReady(generation); }));
  peer.socket = std::move(*socket);
  return {};
}

Result<void> PeerRegions::Ask(Peer& peer) {
  if (peer.to_ask.empty() || peer.full) return {};
  if (peer.socket == nullptr) MC_TRY(Connect(peer));
  while (!peer.to_ask.empty() && peer.asked.size() < options_.max_asked) {
    Message question;
    question.kind = Kind::kMap;
    question.id = peer.to_ask.front();
    question.asker = options_.asker;
    const Socket::Sent sent = peer.socket->Send(question);
    if (sent == Socket::Sent::kBroken) {
      return Error(ErrorCode::TRANSFER_FAIL, "process {} ('{}') is gone", peer.socket->peer().pid, peer.name);
    }
    peer.full = sent == Socket::Sent::kFull;
    if (peer.full) {
      loop_.WatchWritable(peer.socket->fd(), true);
      return {};
    }
    peer.asked.insert(question.id);
    peer.to_ask.pop_front();
  }
  return {};
}

void PeerRegions::OnReady(const Uuid& generation) {
  {
    std::lock_guard lock(mutex_);
    Peer& peer = *peers_.at(generation);
    if (std::exchange(peer.full, false)) loop_.WatchWritable(peer.socket->fd(), false);
  }
  while (HandleNext(generation)) {
  }
}

bool PeerRegions::HandleNext(const Uuid& generation) {
  Peer* peer = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = peers_.find(generation);
    if (found == peers_.end()) return false;  // dropped
    peer = found->second.get();
  }
  Message message;
  Fd fd;
  const Socket& socket = *peer->socket;
  switch (socket.Receive(message, fd)) {
    case Socket::Received::kNothing:
      return false;
    case Socket::Received::kMessage:
      if (auto handled = Handle(*peer, message, std::move(fd)); !handled) {
        Drop(generation, handled.error());
        return false;  // by now there may be another peer of this generation, which is not connected yet
      }
      return true;
    case Socket::Received::kClosed:
      Drop(generation, Status(ErrorCode::TRANSFER_FAIL,
                              fmt::format("process {} ('{}') closed the connection", socket.peer().pid, peer->name)));
      return false;
    case Socket::Received::kGarbage:
      Drop(generation, Status(ErrorCode::TRANSFER_FAIL,
                              fmt::format("process {} ('{}') sent garbage", socket.peer().pid, peer->name)));
      return false;
  }
  return false;
}

// An error closes the connection.
Result<void> PeerRegions::Handle(Peer& peer, const Message& message, Fd fd) {
  const bool answer = message.kind == Kind::kMapped || message.kind == Kind::kUnknown;
  if (answer) {
    std::lock_guard lock(mutex_);
    if (peer.asked.erase(message.id) == 0) {
      return Error(ErrorCode::TRANSFER_FAIL, "process '{}' answered what was not asked", peer.name);
    }
  }
  const bool brings_file = message.kind == Kind::kMapped && !callbacks_.importer;
  if (static_cast<bool>(fd) != brings_file) {
    return Error(ErrorCode::TRANSFER_FAIL, "process '{}' sent {} file", peer.name, fd ? "an unexpected" : "no");
  }
  switch (message.kind) {
    case Kind::kStale:
      return Error(ErrorCode::STALE_SEGMENT, "'{}' is process {} now, not {}", peer.name, message.sender.ToString(),
                   peer.generation.ToString());
    case Kind::kMapped:
      OnMapped(peer, message, fd);
      return {};
    case Kind::kUnknown: {
      Leftovers leftovers;
      {
        std::lock_guard lock(mutex_);
        peer.first_local.erase(message.id);
        auto operations = peer.waiting.extract(message.id);
        waiting_count_ -= operations.mapped().size();
        for (TransferOperation& operation : operations.mapped()) {
          leftovers.ended.emplace_back(
              std::move(operation), Status(ErrorCode::ADDRESS_NOT_REGISTERED,
                                           fmt::format("process '{}' has no shared region {}", peer.name, message.id)));
        }
      }
      End(std::move(leftovers));
      return {};
    }
    case Kind::kRevoke:
    case Kind::kRevokeAll:
      OnRevoke(peer, message);
      return {};
    default:
      return Error(ErrorCode::TRANSFER_FAIL, "process '{}' sent message {}", peer.name,
                   static_cast<unsigned>(message.kind));
  }
}

Result<std::shared_ptr<MappedRegion>> PeerRegions::Map(Peer& peer, const Message& message, const Fd& fd) {
  const auto id = MC_TRY(FileIdOf(fd));
  std::shared_ptr<MappedFile> file = peer.files[id].lock();
  if (file == nullptr) {
    file = MC_TRY(MappedFile::Map(fd));
    std::erase_if(peer.files, [](const auto& entry) { return entry.second.expired(); });
    peer.files[id] = file;
  }
  if (message.offset > file->bytes() || message.length > file->bytes() - message.offset) {
    return Error(ErrorCode::TRANSFER_FAIL, "region of {} B at offset {} is not inside its memfd of {} B",
                 message.length, message.offset, file->bytes());
  }
  MappedFile::Populate(file, message.offset, message.length, workers_);
  const HostRange memory(file->base() + message.offset, message.length);
  return std::make_shared<MappedRegion>(peer.socket, std::move(file), memory, message.address);
}

Result<std::shared_ptr<MappedRegion>> PeerRegions::Import(Peer& peer, const Message& message) {
  if (message.key.back() != '\0') return Error(ErrorCode::TRANSFER_FAIL, "process '{}' sent garbage", peer.name);
  MemoryRange local;
  {
    std::lock_guard lock(mutex_);
    local = peer.first_local.at(message.id);
  }
  return callbacks_.importer(peer.socket, message, local);
}

void PeerRegions::OnMapped(Peer& peer, const Message& message, const Fd& fd) {
  auto region = callbacks_.importer ? Import(peer, message) : Map(peer, message, fd);
  std::vector<TransferOperation> operations;
  {
    std::lock_guard lock(mutex_);
    peer.first_local.erase(message.id);
    operations = std::move(peer.waiting.extract(message.id).mapped());
    waiting_count_ -= operations.size();
    if (region) peer.regions[message.id] = *region;
  }
  std::vector<PieceCopy> copies;
  for (TransferOperation& operation : operations) {
    if (region) {
      Resolve(std::move(operation), *region, copies);
    } else {
      EndOperation(operation, Annotate(region.error(), fmt::format("memory of process '{}'", peer.name)));
    }
  }
  callbacks_.ready(std::move(copies));
}

void PeerRegions::OnRevoke(Peer& peer, const Message& message) {
  const auto acknowledgement = std::make_shared<Acknowledgement>(peer.socket, message.revocation);
  std::vector<std::shared_ptr<MappedRegion>> regions;  // unmapped after the lock is gone
  {
    std::lock_guard lock(mutex_);
    if (message.kind == Kind::kRevokeAll) {
      for (auto& [id, region] : peer.regions) regions.push_back(std::move(region));
      peer.regions.clear();
    } else if (auto found = peer.regions.extract(message.id); !found.empty()) {
      regions.push_back(std::move(found.mapped()));
    }
  }
  for (const auto& region : regions) region->Revoke(acknowledgement);
  callbacks_.unusable();
}

void PeerRegions::Drop(const Uuid& generation, const Status& why) {
  Leftovers leftovers;
  {
    std::lock_guard lock(mutex_);
    auto found = peers_.extract(generation);
    if (found.empty()) return;
    leftovers.peer = std::move(found.mapped());
    Peer& peer = *leftovers.peer;
    EndWaiting(peer, why, leftovers);
    if (peer.socket != nullptr) {
      loop_.Forget(peer.socket->fd());
      peer.socket->MarkDead();
    }
  }
  End(std::move(leftovers));
  callbacks_.unusable();
}

void PeerRegions::Stop() {
  Leftovers leftovers;
  std::unordered_map<Uuid, std::unique_ptr<Peer>> peers;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    peers.swap(peers_);
    for (auto& [generation, peer] : peers) {
      EndWaiting(*peer, Status(ErrorCode::SHUTTING_DOWN, "the transfer engine is closed"), leftovers);
    }
  }
  End(std::move(leftovers));
}

}  // namespace mooncake::shm
