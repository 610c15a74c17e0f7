// When requests leave, arrive and complete; and the thread that makes it so.
#include "bench/bridge_wire.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/idle_spin.h"

namespace mooncake::bench {
namespace {

// Copied in pieces of this size, so that a completion of the other direction does not wait long.
constexpr size_t kPiece = size_t{128} << 10;
// A sleep ends about that much too late.
constexpr Duration kAwake = std::chrono::microseconds(60);

SegmentPtr DescribePeer(HostRange peer) {
  SegmentDescriptor segment;
  segment.name = "peer";
  segment.protocols = {"rdma"};
  segment.generation = Uuid::Random();
  segment.regions.push_back({.address = reinterpret_cast<uint64_t>(peer.data()), .length = peer.size()});
  return std::make_shared<const SegmentDescriptor>(std::move(segment));
}

void End(TransferOperation& operation, Result<void> result) {
  auto done = std::move(operation.done);
  operation.local_use.Release();
  done(std::move(result));
}

}  // namespace

PacedWire::PacedWire(WireOptions options, HostRange peer, Time time)
    : options_(options), peer_(peer), time_(time), target_(DescribePeer(peer)) {
  if (time == Time::kWall) thread_ = std::thread([this] { Run(); });
}

PacedWire::~PacedWire() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    came_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  for (auto* const all : {&flights_, &submitted_}) {
    for (Flights& flights : *all) {
      for (Flight& flight : flights) End(flight.operation, Error(ErrorCode::SHUTTING_DOWN, "the wire is closed"));
    }
  }
}

Result<PacedWire::Flight> PacedWire::Launch(TransferOperation& operation, TimePoint now) {
  if (!region().Covers(operation.target_address, operation.length())) {
    return Error(ErrorCode::ADDRESS_NOT_REGISTERED, "{} B at {:#x} are not the peer's", operation.length(),
                 operation.target_address);
  }
  TimePoint begins = std::max(now, out_free_);
  if (completions_.size() == options_.depth) {
    begins = std::max(begins, completions_.front());
    completions_.pop_front();
  }
  const TimePoint sent = begins + options_.request_cost;
  TimePoint moved{};
  if (operation.opcode == TransferOpcode::kWrite) {
    moved = out_free_ = sent + options_.Moving(operation.length());
  } else {
    out_free_ = sent;
    begins = std::max(sent, in_free_);
    moved = in_free_ = begins + options_.Moving(operation.length());
  }
  completions_.push_back(moved + options_.latency);
  return Flight{std::move(operation), begins, moved + options_.latency, 0};
}

void PacedWire::Submit(std::vector<TransferOperation> operations, Caller) {
  std::vector<std::pair<TransferOperation, Status>> refused;
  {
    std::lock_guard lock(mutex_);
    const TimePoint now = Now();
    for (TransferOperation& operation : operations) {
      const auto direction = static_cast<size_t>(operation.opcode);
      auto flight = Launch(operation, now);
      if (flight) {
        submitted_[direction].push_back(std::move(*flight));
      } else {
        refused.emplace_back(std::move(operation), std::move(flight.error()));
      }
    }
    filled_.store(true, std::memory_order_release);
    came_.notify_one();
  }
  for (auto& [operation, why] : refused) End(operation, std::unexpected(std::move(why)));
}

bool PacedWire::Advance(TimePoint now) {
  if (filled_.exchange(false, std::memory_order_acquire)) {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < flights_.size(); ++i) {
      std::ranges::move(submitted_[i], std::back_inserter(flights_[i]));
      submitted_[i].clear();
    }
  }
  Flight* next = nullptr;
  Flights* of = nullptr;
  for (Flights& flights : flights_) {
    // Completions within a direction are in order. Of two copies the shorter one goes first.
    if (flights.empty() || flights.front().due() > now) continue;
    if (next != nullptr && next->operation.length() <= flights.front().operation.length()) continue;
    next = &flights.front();
    of = &flights;
  }
  if (next == nullptr) return false;
  TransferOperation& operation = next->operation;
  if (next->moved == operation.length()) {
    Flight over = std::move(*next);
    of->pop_front();
    End(over.operation, {});
    return true;
  }
  auto* const local = std::get<HostRange>(operation.local).data() + next->moved;
  auto* const remote = peer_.data() + (operation.target_address - region().address) + next->moved;
  const size_t bytes = std::min(kPiece, operation.length() - next->moved);
  const bool write = operation.opcode == TransferOpcode::kWrite;
  std::memcpy(write ? remote : local, write ? local : remote, bytes);
  next->moved += bytes;
  return true;
}

std::optional<TimePoint> PacedWire::NextAt() {
  if (filled_.load(std::memory_order_acquire)) return Now();
  std::optional<TimePoint> at;
  for (const Flights& flights : flights_) {
    if (!flights.empty()) at = std::min(at.value_or(TimePoint::max()), flights.front().due());
  }
  return at;
}

void PacedWire::WaitUntil(TimePoint until) {
  const TimePoint asleep_until = until - kAwake;
  if (asleep_until > Now()) {
    std::unique_lock lock(mutex_);
    came_.wait_until(lock, asleep_until, [this] { return stop_ || filled_.load(std::memory_order_relaxed); });
  }
  while (Now() < until && !stop_ && !filled_.load(std::memory_order_acquire)) (void)sched_yield();
}

void PacedWire::Run() {
  (void)pthread_setname_np(pthread_self(), "bench-wire");
  (void)prctl(PR_SET_TIMERSLACK, 1000);
  IdleSpin spin;
  while (!stop_) {
    if (Advance(Now())) continue;
    if (const auto next = NextAt()) {
      WaitUntil(*next);
      continue;
    }
    const auto filled = [this] { return filled_.load(std::memory_order_acquire); };
    if (spin.Until(kAwake, filled)) continue;
    const TimePoint asleep = Now();
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return stop_ || filled(); });
    spin.Slept(kAwake, Now() - asleep);
  }
}

}  // namespace mooncake::bench
