// Which of several masters answers: the one that holds a pair in etcd, under a lease that it keeps alive.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "coordination/etcd_client.h"

namespace mooncake {

// Takes part in the election from Open until destruction, on a thread of its own. Any thread may ask.
//
// At most one master leads at a time: the leader stops `margin` before its lease can end at the earliest, counted from
// the moment it asked for the lease, and nobody else can create the pair before the lease has ended.
class Leader {
 public:
  struct Options {
    std::vector<Endpoint> etcd;
    std::string cluster_id;
    std::string advertised;  // "host:port" where clients reach this master
    std::chrono::seconds lease{5};
    Duration margin = std::chrono::seconds(1);
    Duration keep_alive_interval = std::chrono::seconds(1);
    Duration retry_interval = std::chrono::milliseconds(500);
    Duration call_timeout = std::chrono::seconds(1);  // of one request to etcd
  };
  struct View {
    bool leading = false;
    std::string leader;  // as last seen in etcd; empty: none, or not known yet
    std::string error;   // of the last talk with etcd, empty when it went well
  };

  // `on_elected` runs on the election's thread before each term, while nobody is told yet that this master leads.
  static std::unique_ptr<Leader> Open(Options options, std::function<void()> on_elected,
                                      const Clock& clock = SteadyClock::Instance());
  ~Leader();  // gives the leadership back, so that a standby need not wait for the lease

  // The term, while this master leads: it grows with every election in the cluster. One load and a look at the clock.
  std::optional<uint64_t> Term() const;
  View view() const;

 private:
  struct Tenure {
    uint64_t term = 0;
    EtcdClient::LeaseId lease = 0;
  };
  Leader(Options options, std::function<void()> on_elected, const Clock& clock);
  void Run();
  // One step; whether this master is to keep a lease alive from now on.
  Result<void> Campaign();
  Result<void> KeepUp();
  void StepDown();
  void ServeUntil(TimePoint asked, std::chrono::seconds ttl);
  void Show(std::optional<std::string> leader, const Status& status);
  Deadline NextDeadline() const { return Deadline::After(options_.call_timeout); }

  const Options options_;
  const std::string key_;
  const std::function<void()> on_elected_;
  const Clock& clock_;
  EtcdClient etcd_;

  std::optional<Tenure> tenure_;  // the election thread's
  std::atomic<uint64_t> term_{0};
  std::atomic<int64_t> serve_until_ns_{0};  // on clock_; 0: not at all

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool stopping_ = false;
  std::string seen_leader_;
  std::string last_error_;
  std::thread thread_;
};

}  // namespace mooncake
