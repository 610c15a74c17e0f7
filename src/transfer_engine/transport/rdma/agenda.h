// The transport's own thread for what has to happen at some time, or may take milliseconds: deadlines, and making,
// changing and ending queue pairs.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "common/clock.h"

namespace mooncake::rdma {

// Something that the agenda's thread looks after.
class Chore {
 public:
  virtual ~Chore() = default;
  // Does what is due and says when to come again; TimePoint::max(): when asked for.
  virtual TimePoint Attend() = 0;
};

// Any thread; after Stop requests are passed over.
class Agenda {
 public:
  Agenda();
  ~Agenda() { Stop(); }
  Agenda(const Agenda&) = delete;
  Agenda& operator=(const Agenda&) = delete;

  // As soon as possible. During its Attend: once more afterwards.
  void Now(const std::shared_ptr<Chore>& chore) { At(chore, SteadyClock::Instance().Now()); }
  // Not later than `time`, unless it ends earlier.
  void At(const std::shared_ptr<Chore>& chore, TimePoint time);
  // After return no chore is attended to. Not from a chore. Idempotent.
  void Stop();

 private:
  struct Entry {
    std::shared_ptr<Chore> chore;
    TimePoint due;
  };
  void Run();
  void Put(const std::shared_ptr<Chore>& chore, TimePoint time);  // with the lock

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::unordered_map<Chore*, Entry> entries_;
  std::set<std::pair<TimePoint, Chore*>> order_;
  std::thread thread_;
};

}  // namespace mooncake::rdma
