// Exports, sessions of peers, and the wait for their acknowledgements.
#include "transfer_engine/transport/shm/region_server.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/check.h"
#include "common/log.h"
#include "transfer_engine/transport/shm/mapped_region.h"

namespace mooncake::shm {
namespace {

constexpr size_t kMaxOutbox = 256;

}  // namespace

Result<std::unique_ptr<RegionServer>> RegionServer::Open(EventLoop& loop, Counter& unacknowledged, Options options) {
  auto listener = MC_TRY(Listener::Open());
  const int fd = listener->fd();
  std::unique_ptr<RegionServer> server(new RegionServer(loop, unacknowledged, options, std::move(listener)));
  MC_TRY(loop.Watch(fd, [raw = server.get()] { raw->OnConnection(); }));
  return server;
}

RegionServer::RegionServer(EventLoop& loop, Counter& unacknowledged, Options options,
                           std::unique_ptr<Listener> listener)
    : loop_(loop), unacknowledged_(unacknowledged), options_(options), listener_(std::move(listener)) {}

RegionServer::~RegionServer() = default;

Result<void> RegionServer::Add(Region& region) {
  const SharedMemory& shared = *region.options.shared;
  struct stat info{};
  if (fstat(shared.memfd, &info) != 0) {
    return Error(ErrorCode::INVALID_PARAMS, "memfd {} of memory {:#x}: {}", shared.memfd, region.address,
                 std::strerror(errno));
  }
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (shared.offset > bytes || region.length > bytes - shared.offset) {
    return Error(ErrorCode::INVALID_PARAMS, "memory [{:#x}, +{}) does not fit at offset {} into a memfd of {} B",
                 region.address, region.length, shared.offset, bytes);
  }
  const int seals = fcntl(shared.memfd, F_GET_SEALS);
  if (seals < 0 || ((seals & F_SEAL_SHRINK) == 0 && fcntl(shared.memfd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)) {
    log::Warn(
        "memory [{:#x}, +{}) is not shared with processes of this host: its file cannot be sealed against "
        "shrinking: {}",
        region.address, region.length, std::strerror(errno));
    return {};
  }
  std::lock_guard lock(mutex_);
  std::weak_ptr<const File>& known = files_[{info.st_dev, info.st_ino}];
  std::shared_ptr<const File> file = known.lock();
  if (file == nullptr) {
    Fd own(fcntl(shared.memfd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    if (!own) return Error(ErrorCode::INTERNAL_ERROR, "dup of a memfd: {}", std::strerror(errno));
    file = std::make_shared<const File>(File{std::move(own)});
    known = file;
  }
  std::erase_if(files_, [](const auto& entry) { return entry.second.expired(); });
  region.published.shm_id = next_id_++;
  region.published.shm_offset = shared.offset;
  exports_.emplace(region.published.shm_id, Export{std::move(file), region.address, region.length, shared.offset});
  return {};
}

uint64_t RegionServer::Offer(uint64_t address, uint64_t length, std::string_view key, uint64_t offset, Grant grant) {
  Export offered{nullptr, address, length, offset, {}, std::make_shared<const Grant>(std::move(grant))};
  MC_CHECK(key.size() < offered.key.size(), "a key of {} characters", key.size());
  std::ranges::copy(key, offered.key.begin());
  std::lock_guard lock(mutex_);
  const uint64_t id = next_id_++;
  exports_.emplace(id, std::move(offered));
  return id;
}

bool RegionServer::Remove(uint64_t id) {
  std::unique_lock lock(mutex_);
  if (id == 0 || exports_.erase(id) == 0) return true;
  std::vector<int> holders;
  for (const auto& [fd, session] : sessions_) {
    if (session->granted.erase(id) != 0) holders.push_back(fd);
  }
  return Revoke(lock, id, holders);
}

void RegionServer::Fence(const Uuid& node) {
  std::unique_lock lock(mutex_);
  std::vector<int> holders;
  for (const auto& [fd, session] : sessions_) {
    if (session->node != node) continue;
    // Also without a grant: a region withdrawn a moment ago may still be in use there.
    session->granted.clear();
    holders.push_back(fd);
  }
  Revoke(lock, 0, holders);
}

bool RegionServer::Revoke(std::unique_lock<std::mutex>& lock, uint64_t id, const std::vector<int>& sessions) {
  if (sessions.empty()) return true;
  const uint64_t revocation = next_revocation_++;
  std::set<int>& unanswered = revocations_[revocation];
  for (const int fd : sessions) {
    Message message;
    message.kind = id == 0 ? Kind::kRevokeAll : Kind::kRevoke;
    message.id = id;
    message.revocation = revocation;
    unanswered.insert(fd);
    Session& session = *sessions_.at(fd);
    if (!Post(session, {message, nullptr}))
      session.socket->Shutdown();  // the loop closes it, which counts as an answer
  }
  acknowledged_.wait_for(lock, options_.revoke_timeout, [&] { return revocations_.at(revocation).empty(); });
  std::vector<pid_t> silent;
  for (const int fd : revocations_.at(revocation)) {
    silent.push_back(sessions_.at(fd)->socket->peer().pid);
    sessions_.at(fd)->socket->Shutdown();
  }
  revocations_.erase(revocation);
  lock.unlock();
  for (const pid_t pid : silent) {
    unacknowledged_.Add();
    log::Warn(
        "process {} did not let go of memory of this process within {} ms and was disconnected; if it is only "
        "stopped and goes on, the copy it was in may still finish",
        pid, std::chrono::duration_cast<std::chrono::milliseconds>(options_.revoke_timeout).count());
  }
  return silent.empty();
}

void RegionServer::OnConnection() {
  while (std::shared_ptr<Socket> socket = listener_->Accept()) {
    if (!MayShare(socket->peer(), options_.any_user)) {
      log::Debug("process {} of user {} may not map memory of this process", socket->peer().pid, socket->peer().uid);
      continue;
    }
    const int fd = socket->fd();
    {
      std::lock_guard lock(mutex_);
      if (sessions_.size() >= options_.max_sessions) continue;
      auto session = std::make_unique<Session>();
      session->socket = socket;
      sessions_.emplace(fd, std::move(session));
    }
    if (!loop_.Watch(fd, [this, fd] { OnReady(fd); })) Close(fd);
  }
}

void RegionServer::OnReady(int fd) {
  for (;;) {
    std::unique_lock lock(mutex_);
    Session& session = *sessions_.at(fd);
    bool keep = Flush(session);
    Message message;
    Fd brought;
    Socket::Received received = Socket::Received::kNothing;
    if (keep && session.outbox.empty()) {
      received = session.socket->Receive(message, brought);
      if (received == Socket::Received::kMessage) keep = !brought && Handle(lock, session, message);
    }
    if (keep && received == Socket::Received::kNothing) return;
    if (keep && received == Socket::Received::kMessage) continue;
    lock.unlock();
    return Close(fd);
  }
}

bool RegionServer::Handle(std::unique_lock<std::mutex>& lock, Session& session, const Message& message) {
  Message answer;
  answer.id = message.id;
  if (message.kind == Kind::kHello) {
    if (!session.node.IsNil() || message.sender.IsNil()) return false;
    session.node = message.sender;
    if (message.expected == options_.generation) return true;
    answer.kind = Kind::kStale;
    answer.sender = options_.generation;
    return Post(session, {answer, nullptr});
  }
  if (session.node.IsNil()) return false;
  if (message.kind == Kind::kRevoked) {
    const auto found = revocations_.find(message.revocation);
    // One that is not waited for any more is an answer that came late.
    if (found != revocations_.end() && found->second.erase(session.socket->fd()) != 0) acknowledged_.notify_all();
    return true;
  }
  return message.kind == Kind::kMap && HandOut(lock, session, message);
}

// Sessions end on this thread only, regions on any.
bool RegionServer::HandOut(std::unique_lock<std::mutex>& lock, Session& session, const Message& message) {
  Message answer;
  answer.id = message.id;
  auto found = exports_.find(message.id);
  if (found != exports_.end() && found->second.grant != nullptr) {
    const std::shared_ptr<const Grant> grant = found->second.grant;
    lock.unlock();
    const Result<void> granted = (*grant)(message.asker);
    lock.lock();
    found = granted ? exports_.find(message.id) : exports_.end();
    if (!granted) {
      log::Warn("process {} does not get NPU memory: {}", session.socket->peer().pid, granted.error().ToString());
    }
  }
  if (found == exports_.end()) {
    answer.kind = Kind::kUnknown;
    return Post(session, {answer, nullptr});
  }
  answer.kind = Kind::kMapped;
  answer.address = found->second.address;
  answer.length = found->second.length;
  answer.offset = found->second.offset;
  answer.key = found->second.key;
  session.granted.insert(message.id);
  return Post(session, {answer, found->second.file});
}

// In the order of the calls, so that a region is never handed out after it was taken back.
bool RegionServer::Post(Session& session, Outgoing outgoing) {
  session.outbox.push_back(std::move(outgoing));
  return session.outbox.size() <= kMaxOutbox && Flush(session);
}

bool RegionServer::Flush(Session& session) {
  while (!session.outbox.empty()) {
    const Outgoing& first = session.outbox.front();
    const Socket::Sent sent = session.socket->Send(first.message, first.file == nullptr ? -1 : first.file->fd.get());
    if (sent == Socket::Sent::kBroken) return false;
    if (sent == Socket::Sent::kFull) break;
    session.outbox.pop_front();
  }
  if (session.watching_writable == session.outbox.empty()) {
    session.watching_writable = !session.outbox.empty();
    loop_.WatchWritable(session.socket->fd(), session.watching_writable);
  }
  return true;
}

void RegionServer::Close(int fd) {
  loop_.Forget(fd);
  std::unique_ptr<Session> gone;  // closed after the lock is gone
  std::lock_guard lock(mutex_);
  const auto found = sessions_.find(fd);
  gone = std::move(found->second);
  sessions_.erase(found);
  for (auto& [revocation, unanswered] : revocations_) unanswered.erase(fd);
  acknowledged_.notify_all();
}

}  // namespace mooncake::shm
