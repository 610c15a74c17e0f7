// Election and keeping the lease.
#include "master/leader.h"

#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "protocol/master_view.h"

namespace mooncake {

std::unique_ptr<Leader> Leader::Open(Options options, std::function<void()> on_elected, const Clock& clock) {
  std::unique_ptr<Leader> leader(new Leader(std::move(options), std::move(on_elected), clock));
  leader->thread_ = std::thread([raw = leader.get()] { raw->Run(); });
  return leader;
}

Leader::Leader(Options options, std::function<void()> on_elected, const Clock& clock)
    : options_(std::move(options)),
      key_(protocol::MasterViewKey(options_.cluster_id)),
      on_elected_(std::move(on_elected)),
      clock_(clock),
      etcd_(options_.etcd) {
  MC_CHECK(options_.margin < options_.lease, "a lease of {} s with a margin that is not less", options_.lease.count());
}

Leader::~Leader() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  if (!tenure_) return;
  serve_until_ns_.store(0);
  if (const auto revoked = etcd_.RevokeLease(tenure_->lease, NextDeadline()); !revoked) {
    log::Warn("giving back the leadership of '{}': {}", options_.cluster_id, revoked.error().ToString());
  }
}

std::optional<uint64_t> Leader::Term() const {
  const int64_t until = serve_until_ns_.load(std::memory_order_acquire);
  if (clock_.Now().time_since_epoch().count() >= until) return std::nullopt;
  return term_.load(std::memory_order_relaxed);
}

Leader::View Leader::view() const {
  const bool leading = Term().has_value();
  std::lock_guard lock(mutex_);
  return {leading, seen_leader_, last_error_};
}

void Leader::Show(std::optional<std::string> leader, const Status& status) {
  std::lock_guard lock(mutex_);
  if (leader) seen_leader_ = std::move(*leader);
  if (status.code() == ErrorCode::OK) {
    last_error_.clear();
    return;
  }
  if (last_error_.empty()) log::Warn("election in '{}': {}", options_.cluster_id, status.ToString());
  last_error_ = status.message();
}

void Leader::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const auto done = tenure_ ? KeepUp() : Campaign();
    if (!done) Show(std::nullopt, done.error());
    lock.lock();
    const Duration pause = tenure_ ? options_.keep_alive_interval : options_.retry_interval;
    wake_.wait_for(lock, pause, [this] { return stopping_; });
  }
}

void Leader::ServeUntil(TimePoint asked, std::chrono::seconds ttl) {
  const TimePoint until = asked + ttl - options_.margin;
  serve_until_ns_.store(until.time_since_epoch().count(), std::memory_order_release);
}

Result<void> Leader::Campaign() {
  if (auto there = MC_TRY(etcd_.Get(key_, NextDeadline()))) {
    Show(std::move(there->value), Status());
    return {};
  }
  const TimePoint asked = clock_.Now();
  const EtcdClient::Lease lease = MC_TRY(etcd_.GrantLease(options_.lease, NextDeadline()));
  auto creation = etcd_.Create(key_, options_.advertised, lease.id, NextDeadline());
  if (!creation || !creation->created) {
    // Also when the answer was lost: a pair that nobody keeps would hold up the election for a whole lease.
    const auto revoked = etcd_.RevokeLease(lease.id, NextDeadline());
    if (!creation) return std::unexpected(std::move(creation).error());
    Show(std::move(creation->pair.value), revoked ? Status() : revoked.error());
    return {};
  }
  tenure_ = Tenure{static_cast<uint64_t>(creation->pair.create_revision), lease.id};
  on_elected_();
  term_.store(tenure_->term, std::memory_order_relaxed);
  ServeUntil(asked, lease.ttl);
  Show(options_.advertised, Status());
  log::Info("leading '{}' as {} in term {}", options_.cluster_id, options_.advertised, tenure_->term);
  return {};
}

Result<void> Leader::KeepUp() {
  const TimePoint asked = clock_.Now();
  const auto left = MC_TRY(etcd_.KeepLease(tenure_->lease, NextDeadline()));
  if (left.count() == 0) {
    StepDown();
    return {};
  }
  // The lease alone does not make a leader: somebody may have removed the pair by hand.
  const auto there = MC_TRY(etcd_.Get(key_, NextDeadline()));
  if (!there || there->lease != tenure_->lease) {
    StepDown();
    return {};
  }
  ServeUntil(asked, left);
  Show(options_.advertised, Status());
  return {};
}

void Leader::StepDown() {
  serve_until_ns_.store(0, std::memory_order_release);
  log::Warn("lost the leadership of '{}' in term {}", options_.cluster_id, tenure_->term);
  // Frees the pair, should it still be ours in some way.
  (void)etcd_.RevokeLease(tenure_->lease, NextDeadline());
  tenure_.reset();
  Show("", Status());
}

}  // namespace mooncake
