// The owner's side: hands out registered regions, as memfds or otherwise, and gets them back.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/metrics.h"
#include "transfer_engine/region_registry.h"
#include "transfer_engine/transport/shm/event_loop.h"

namespace mooncake::shm {

// Any thread, but for what EventLoop says. The loop stops before this dies.
class RegionServer {
 public:
  struct Options {
    Uuid generation;
    bool any_user = false;
    Duration revoke_timeout = std::chrono::seconds(3);
    size_t max_sessions = 1024;
  };
  static Result<std::unique_ptr<RegionServer>> Open(EventLoop& loop, Counter& unacknowledged, Options options);
  ~RegionServer();

  const std::string& socket_name() const { return listener_->name(); }

  // Seals the memfd against shrinking and fills in shm_id and shm_offset. A memfd that cannot be sealed is not shared,
  // with a warning. INVALID_PARAMS when the region is not inside the file.
  Result<void> Add(Region& region);
  // Offers memory that comes with a key instead of a file, and returns its id. Before a peer is told the key, `grant`
  // is asked whether it may have it: on the loop's thread, without locks held.
  using Grant = std::function<Result<void>(int64_t asker)>;
  uint64_t Offer(uint64_t address, uint64_t length, std::string_view key, uint64_t offset, Grant grant);
  // Returns when no peer uses the region: each has said so, has closed its connection or was disconnected because it
  // did not answer in time. The last is a warning with the peer's pid and is counted. A process that is stopped inside
  // a copy and goes on later cannot be kept from finishing that piece by anybody. False: that may have happened.
  bool Remove(uint64_t id);
  // The same for all that the process of this generation was given so far; it may ask again.
  void Fence(const Uuid& node);

 private:
  // A memfd of ours, however many regions are in it.
  struct File {
    Fd fd;
  };
  struct Export {
    std::shared_ptr<const File> file;
    uint64_t address = 0;
    uint64_t length = 0;
    uint64_t offset = 0;
    decltype(Message::key) key = {};
    std::shared_ptr<const Grant> grant = {};  // null: to everybody
  };
  struct Outgoing {
    Message message;
    std::shared_ptr<const File> file;  // null: none goes along
  };
  struct Session {
    std::shared_ptr<Socket> socket;
    Uuid node;  // nil until it has said hello
    std::set<uint64_t> granted;
    std::deque<Outgoing> outbox;  // nothing more is read while something is in it
    bool watching_writable = false;
  };
  using Sessions = std::unordered_map<int, std::unique_ptr<Session>>;  // by descriptor

  RegionServer(EventLoop& loop, Counter& unacknowledged, Options options, std::unique_ptr<Listener> listener);
  void OnConnection();
  void OnReady(int fd);
  // False: the connection is to be closed. With the lock.
  bool Handle(std::unique_lock<std::mutex>& lock, Session& session, const Message& message);
  bool HandOut(std::unique_lock<std::mutex>& lock, Session& session, const Message& message);
  bool Post(Session& session, Outgoing outgoing);
  bool Flush(Session& session);
  void Close(int fd);
  // Asks these sessions to stop using `id` (0: all) and waits for them. False: not all have answered.
  bool Revoke(std::unique_lock<std::mutex>& lock, uint64_t id, const std::vector<int>& sessions);

  EventLoop& loop_;
  Counter& unacknowledged_;
  const Options options_;
  const std::unique_ptr<Listener> listener_;
  std::mutex mutex_;  // no wait but on the condition under it; what is sent never blocks
  std::condition_variable acknowledged_;
  uint64_t next_id_ = 1;
  uint64_t next_revocation_ = 1;
  std::unordered_map<uint64_t, Export> exports_;  // by shm_id
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<const File>> files_;
  Sessions sessions_;
  std::unordered_map<uint64_t, std::set<int>> revocations_;  // sessions that have not answered
};

}  // namespace mooncake::shm
