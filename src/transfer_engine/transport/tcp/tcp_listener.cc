// Accepting and the table of sessions.
#include "transfer_engine/transport/tcp/tcp_listener.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>

#include "common/check.h"
#include "common/log.h"

namespace mooncake::tcp {
namespace {
constexpr int kAcceptsPerTurn = 64;
// Without a free descriptor, waiting connections would wake the loop again at once.
constexpr Duration kPause = std::chrono::milliseconds(100);
}  // namespace

Listener::Listener(RegionRegistry& registry, TcpMetrics counters, const TcpOptions& choices, const Uuid& generation,
                   std::vector<std::shared_ptr<EventLoop>> loops, ListeningSocket listening)
    : SessionHost(registry, counters, choices, generation),
      loops_(std::move(loops)),
      socket_(std::move(listening.socket)),
      port_(listening.port) {}

Result<std::unique_ptr<Listener>> Listener::Open(RegionRegistry& regions, TcpMetrics metrics, const TcpOptions& options,
                                                 const Uuid& self, const std::string& host,
                                                 std::vector<std::shared_ptr<EventLoop>> loops) {
  auto listening = MC_TRY(Listen(host, options));
  std::unique_ptr<Listener> listener(
      new Listener(regions, metrics, options, self, std::move(loops), std::move(listening)));
  auto acceptor = std::make_shared<Acceptor>();
  acceptor->listener = listener.get();
  listener->token_ = MC_TRY(listener->loops_[0]->Watch(listener->socket_.fd(), EPOLLIN, std::move(acceptor)));
  return listener;
}

Listener::~Listener() {
  if (token_ != 0) loops_[0]->Forget(socket_.fd(), token_);
  std::vector<std::shared_ptr<Session>> left;
  {
    std::lock_guard lock(mutex_);
    left.assign(sessions_.begin(), sessions_.end());
  }
  for (const auto& session : left) session->Close();
}

void Listener::Accept() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Socket socket(accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) PauseAccepting();
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    metrics.accepted.Add();
    if (open_.load() >= options.max_connections) {
      metrics.rejected.Add();
      socket.Abort();
      continue;
    }
    Count(++open_);
    const std::shared_ptr<EventLoop>& loop = loops_[next_loop_++ % loops_.size()];
    loop->Post([this, loop, owned = std::move(socket)]() mutable { Adopt(loop, std::move(owned)); });
  }
}

void Listener::PauseAccepting() {
  log::Warn("tcp data port {}: cannot accept: {}", port_, std::strerror(errno));
  loops_[0]->Change(socket_.fd(), token_, 0);
  loops_[0]->RunAt(std::chrono::steady_clock::now() + kPause,
                   [this] { loops_[0]->Change(socket_.fd(), token_, EPOLLIN); });
}

void Listener::Adopt(const std::shared_ptr<EventLoop>& loop, Socket socket) {
  const auto session = std::make_shared<Session>(*this, loop, std::move(socket));
  {
    std::lock_guard lock(mutex_);
    sessions_.insert(session);
  }
  session->Open();
}

// Earlier connections of the slot may still have writes to read: they are closed before the new one is answered.
void Listener::OnHello(const std::shared_ptr<Session>& session) {
  std::vector<std::shared_ptr<Session>> earlier;
  {
    std::lock_guard lock(mutex_);
    auto& holders = by_slot_[Slot(session->hello().instance, session->hello().slot)];
    earlier = holders;
    holders.push_back(session);
  }
  CloseThenAdmit(std::move(earlier), session);
}

void Listener::CloseThenAdmit(std::vector<std::shared_ptr<Session>> earlier, const std::shared_ptr<Session>& session) {
  if (earlier.empty()) {
    session->loop()->Post([session] { session->Admit(); });
    return;
  }
  const std::shared_ptr<Session> last = std::move(earlier.back());
  earlier.pop_back();
  last->loop()->Post([last, session, rest = std::move(earlier)]() mutable {
    last->Close();
    CloseThenAdmit(std::move(rest), session);
  });
}

void Listener::OnClosed(Session& session) {
  const std::shared_ptr<Session> kept = session.shared_from_this();
  std::lock_guard lock(mutex_);
  MC_CHECK(sessions_.erase(kept) == 1, "a session closed twice");
  if (const auto slot = by_slot_.find(Slot(kept->hello().instance, kept->hello().slot)); slot != by_slot_.end()) {
    std::erase(slot->second, kept);
    if (slot->second.empty()) by_slot_.erase(slot);
  }
  Count(--open_);
}

void Listener::Count(size_t open) {
  metrics.open.Set(static_cast<double>(open));
}

std::vector<std::shared_ptr<Session>> Listener::SessionsOn(const EventLoop& loop) {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Session>> chosen;
  std::ranges::copy_if(sessions_, std::back_inserter(chosen),
                       [&](const auto& session) { return session->loop().get() == &loop; });
  return chosen;
}

void Listener::CloseSessionsOf(const Uuid& initiator) {
  struct Turns {
    std::mutex mutex;
    std::condition_variable all_done;
    size_t left;
  };
  const auto turns = std::make_shared<Turns>();
  turns->left = loops_.size();
  for (const auto& loop : loops_) {
    loop->Post([this, loop, initiator, turns] {
      for (const auto& session : SessionsOn(*loop)) {
        if (!session->admitted() || session->hello().initiator == initiator) session->Close();
      }
      std::lock_guard lock(turns->mutex);
      if (--turns->left == 0) turns->all_done.notify_all();
    });
  }
  std::unique_lock lock(turns->mutex);
  turns->all_done.wait(lock, [&] { return turns->left == 0; });
}

void Listener::CheckUses() {
  for (const auto& loop : loops_) {
    loop->Post([this, loop] {
      for (const auto& session : SessionsOn(*loop)) session->CheckUses();
    });
  }
}

}  // namespace mooncake::tcp
