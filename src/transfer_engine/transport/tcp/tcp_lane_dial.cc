// How a lane gets its connection, says who it wants, and loses the connection again.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/check.h"
#include "common/log.h"
#include "transfer_engine/transport/tcp/tcp_peer.h"

namespace mooncake::tcp {
namespace {
// An additional connection that could not be made is not tried again sooner.
constexpr Duration kPauseAfterFailure = std::chrono::seconds(1);
// Connections an operation may lose to the peer's or the network's fault: requests can be repeated, so one is made up
// for.
constexpr int kLossesForgiven = 1;
}  // namespace

// One connection at a time, and none beyond need: this is called when all there are have as much in flight as they may.
void Peer::DialMore(Turn& turn) {
  if (closed_ || std::ranges::any_of(lanes_, [](const auto& lane) { return lane->Dialing(); })) return;
  const bool urgent = std::ranges::none_of(long_lanes_, [](const auto& lane) { return lane->state == State::kReady; });
  for (const auto& lane : lanes_) {
    if (lane->state == State::kDown && lane->strays > 0) return Dial(turn, *lane);
  }
  const TimePoint now = std::chrono::steady_clock::now();
  for (const auto& lane : long_lanes_) {
    if (lane->state == State::kDown && (urgent || lane->not_before <= now)) return Dial(turn, *lane);
  }
}

void Peer::DialExpress(Turn& turn) {
  if (closed_ || Express().state != State::kDown || Express().not_before > std::chrono::steady_clock::now()) return;
  // Not beside others: where the first connection cannot be made, no second attempt is needed to say so.
  const auto ready = [](const auto& lane) { return lane->state == State::kReady; };
  if (std::ranges::any_of(long_lanes_, ready)) Dial(turn, Express());
}

void Peer::Dial(Turn& turn, Lane& lane) {
  if (lane.peer.expired()) lane.peer = weak_from_this();  // once: the loop reads it without the lock
  ++lane.dial;
  lane.state = State::kResolving;
  if (auto literal = Resolve(address_, true)) {
    lane.addresses = std::move(*literal);
    return Connect(turn, lane);
  }
  std::move_only_function<void()> look_up = [self = shared_from_this(), slot = lane.slot, dial = lane.dial] {
    auto found = Resolve(self->address_, false);
    Turn later(*self);
    Lane& waiting = *self->lanes_[slot];
    if (waiting.dial != dial || waiting.state != State::kResolving) return;
    if (!found) return self->DialFailed(later, waiting, found.error());
    waiting.addresses = std::move(*found);
    self->Connect(later, waiting);
  };
  if (!environment_->workers->TrySubmit(look_up)) {
    DialFailed(turn, lane, Status(ErrorCode::TRANSFER_FAIL, "too many name look-ups are waiting"));
  }
}

// Tries the addresses one after the other; addresses.back() is the one under way.
void Peer::Connect(Turn& turn, Lane& lane) {
  std::ranges::reverse(lane.addresses);
  Status last(ErrorCode::TRANSFER_FAIL, "no address");
  while (!lane.addresses.empty()) {
    auto socket = StartConnect(lane.addresses.back(), environment_->options);
    if (socket) {
      lane.socket = std::move(*socket);
      auto token = lane.loop->Watch(lane.socket.fd(), EPOLLIN | EPOLLOUT, lanes_[lane.slot]);
      if (token) {
        lane.token = *token;
        lane.wants_writable = true;
        lane.state = State::kConnecting;
        return;
      }
      socket = std::unexpected(token.error());
      lane.socket.Close();
    }
    last = socket.error();
    lane.addresses.pop_back();
  }
  DialFailed(turn, lane, last);
}

// The connection stands, or this address has failed.
void Peer::SayHello(Turn& turn, Lane& lane) {
  int error = ConnectError(lane.socket);
  if (error == 0) {
    Prepare(lane.socket, environment_->options);
    const Hello hello{.slot = lane.slot, .initiator = environment_->self, .target = generation_, .instance = instance_};
    // A new connection takes so little at once.
    if (send(lane.socket.fd(), &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello)) {
      lane.state = State::kHello;
      WantWritable(lane, false);
      return;
    }
    error = errno;
  }
  std::vector<Address> rest = std::move(lane.addresses);
  HangUp(lane);
  if (rest.size() <= 1) {
    return DialFailed(turn, lane,
                      Status(ErrorCode::TRANSFER_FAIL, fmt::format("connect: {}", std::strerror(error)), error));
  }
  rest.pop_back();
  std::ranges::reverse(rest);
  lane.addresses = std::move(rest);
  lane.state = State::kResolving;
  Connect(turn, lane);
}

void Peer::HearAnswer(Turn& turn, Lane& lane) {
  const ssize_t got = recv(lane.socket.fd(), lane.input.data() + lane.input_bytes,
                           sizeof(HelloAnswer) - lane.input_bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    const std::string reason = got == 0 ? "closed" : std::strerror(errno);
    return DialFailed(turn, lane,
                      Status(ErrorCode::TRANSFER_FAIL,
                             fmt::format("the connection was refused before its first request ({}): the target may "
                                         "have as many connections as it allows",
                                         reason)));
  }
  lane.input_bytes += static_cast<size_t>(got);
  if (lane.input_bytes < sizeof(HelloAnswer)) return;
  HelloAnswer answer;
  std::memcpy(&answer, lane.input.data(), sizeof(answer));
  lane.input_bytes = 0;
  const auto code = static_cast<ErrorCode>(answer.code);
  if (answer.magic != kHelloMagic) {
    return DialFailed(turn, lane, Status(ErrorCode::TRANSFER_FAIL, "this is no data port of a transfer engine"));
  }
  if (answer.version != kVersion || (code != ErrorCode::OK && code != ErrorCode::STALE_SEGMENT)) {
    return DialFailed(turn, lane,
                      Status(ErrorCode::TRANSFER_FAIL, fmt::format("refused: {} (data protocol {}, ours {})",
                                                                   ErrorCodeName(code), answer.version, kVersion)));
  }
  if (code == ErrorCode::STALE_SEGMENT || answer.target != generation_) {
    return DialFailed(turn, lane,
                      Status(ErrorCode::STALE_SEGMENT, fmt::format("it is process {} now, not {}",
                                                                   answer.target.ToString(), generation_.ToString())));
  }
  if (answer.max_request_bytes < environment_->options.chunk_bytes) {
    return DialFailed(
        turn, lane,
        Status(ErrorCode::TRANSFER_FAIL, fmt::format("it takes requests of {} bytes only", answer.max_request_bytes)));
  }
  Ready(turn, lane);
}

void Peer::Ready(Turn& turn, Lane& lane) {
  environment_->metrics.dialed.Add();
  lane.state = State::kReady;
  lane.addresses.clear();
  DropAllStrays(lane);
  for (Chunk& orphan : lane.orphans) {
    environment_->metrics.retries.Add();
    lane.flight_bytes += orphan.header.length;
    orphan.header.id = lane.next_id++;
    lane.flight.push_back(std::move(orphan));
  }
  lane.orphans.clear();
  Assign(turn);
  Kick(turn, &lane, 0);
}

void Peer::DialFailed(Turn& turn, Lane& lane, const Status& status) {
  HangUp(lane);
  lane.not_before = std::chrono::steady_clock::now() + kPauseAfterFailure;
  const bool stale = status.code() == ErrorCode::STALE_SEGMENT;
  const bool others = std::ranges::any_of(long_lanes_, [](const auto& other) { return other->state != State::kDown; });
  std::vector<PendingPtr> victims;
  if (stale || !others) {
    victims.assign(live_.begin(), live_.end());
  } else {
    for (const Chunk& orphan : lane.orphans) victims.push_back(orphan.operation);
  }
  const Status reason(stale ? ErrorCode::STALE_SEGMENT : ErrorCode::TRANSFER_FAIL,
                      fmt::format("{}: {}", Name(), status.message()), status.vendor_code());
  for (const PendingPtr& victim : victims) End(turn, victim, std::unexpected(reason));
  if (stale || status.vendor_code() == ECONNREFUSED) {
    // That process is gone.
    for (const auto& each : lanes_) {
      if (each->state == State::kDown) DropAllStrays(*each);
    }
  }
  if (strays_ == 0 || !HasWork()) return;
  // Nothing else may come that would try again.
  lane.loop->RunAt(lane.not_before, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    Turn later(*self);
    self->resume_ = true;
    self->Resume(later);
  });
}

// Back to where no connection is; what was in flight stays behind.
void Peer::HangUp(Lane& lane) {
  MC_CHECK(!lane.sending && !lane.receiving, "lane {} to {} is in use", lane.slot, address_.ToString());
  if (lane.socket) {
    lane.loop->Forget(lane.socket.fd(), lane.token);
    lane.socket.Abort();
  }
  ++lane.dial;
  lane.state = State::kDown;
  lane.addresses.clear();
  lane.wants_writable = false;
  lane.one_by_one = false;
  lane.input_bytes = 0;
  lane.body_left = 0;
}

void Peer::Fail(Lane& lane, Status status, bool our_fault) {
  if (lane.failure) return;
  lane.failure = std::move(status);
  lane.our_fault = our_fault;
}

// Takes the connection down when nobody is in a system call on it. Its unanswered chunks wait for the lane's next
// connection: the target has let go of the old one before it answers there, so that a write that is sent again, and
// whatever the application writes afterwards, cannot be overtaken by the first attempt.
void Peer::TakeDownIfFailed(Turn& turn, Lane& lane) {
  if (!lane.failure || lane.sending || lane.receiving) return;
  const Status status = std::move(*lane.failure);
  lane.failure.reset();
  HangUp(lane);
  std::deque<Chunk> unanswered = std::move(lane.flight);
  lane.flight.clear();
  std::erase_if(unanswered, [](const Chunk& chunk) { return chunk.operation == nullptr; });
  lane.flight_bytes = lane.next_id = lane.sent_id = lane.sent_bytes = 0;
  std::vector<PendingPtr> losers;
  for (const Chunk& chunk : unanswered) {
    if (losers.empty() || losers.back() != chunk.operation) losers.push_back(chunk.operation);
  }
  for (Chunk& chunk : unanswered) {
    // The next connection knows nothing of what this one has lent.
    if (chunk.IsReturn()) chunk.header.operation = Operation::kRead;
    chunk.lent = false;
    lane.orphans.push_back(std::move(chunk));
  }
  if (!lane.our_fault && !losers.empty()) {
    environment_->metrics.lost.Add();
    log::Debug("{}: connection {} lost with {} requests: {}", Name(), lane.slot, lane.orphans.size(), status.message());
    std::ranges::sort(losers);
    losers.erase(std::ranges::unique(losers).begin(), losers.end());
    for (const PendingPtr& loser : losers) {
      if (++loser->losses <= kLossesForgiven) continue;
      End(turn, loser, Error(ErrorCode::TRANSFER_FAIL, "{}: connection lost again: {}", Name(), status.message()));
    }
  }
  if (closed_) return;
  if (!lane.orphans.empty()) return Dial(turn, lane);
  if (HasWork()) Assign(turn);
}

}  // namespace mooncake::tcp
