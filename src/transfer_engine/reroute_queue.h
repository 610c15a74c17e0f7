// Requests that ended because the target is not what it was when it was looked up: they wait here for its new
// descriptor, and are handed back once.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "transfer_engine/segment_cache.h"
#include "transfer_engine/transfer_job.h"

namespace mooncake {

// One thread, started with the first request. Any thread.
class RerouteQueue {
 public:
  struct Outcome {
    TransferJobPtr job;
    Result<SegmentPtr> segment;  // the new descriptor, or how the job ends
  };
  // Called on the queue's thread, without a lock.
  using Sink = std::function<void(std::vector<Outcome>)>;

  RerouteQueue(SegmentCache& segments, Sink sink) : segments_(segments), sink_(std::move(sink)) {}
  ~RerouteQueue() { Stop(); }
  RerouteQueue(const RerouteQueue&) = delete;
  RerouteQueue& operator=(const RerouteQueue&) = delete;

  // `why`: what the transport said; also what comes out when the target has not changed. False once stopped, or when
  // there is no thread to be had: the job then still is the caller's. `patience`: how long at most, within the job's
  // deadline.
  bool Add(TransferJobPtr& job, const Status& why, Duration patience);
  // Looks for canceled jobs.
  void Wake();
  // Hands out what waits with SHUTTING_DOWN and joins. Fetches under way must still be ended by their source.
  void Stop();

 private:
  struct Waiting {
    TransferJobPtr job;
    Status why;
    TimePoint give_up;
    bool answered = false;
    Result<SegmentPtr> answer;
  };

  bool StartThread();  // under mutex_
  void Run();
  void Collect(std::vector<Outcome>& ended, TimePoint& wake_at);
  // What becomes of it now; nullopt: it goes on waiting.
  std::optional<Result<SegmentPtr>> Judge(Waiting& waiting, TimePoint now) const;

  SegmentCache& segments_;
  const Sink sink_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  bool look_ = false;
  std::list<std::shared_ptr<Waiting>> waiting_;
  std::thread thread_;
};

}  // namespace mooncake
