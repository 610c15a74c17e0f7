// The asker's side: connections to other processes of this host, and what they have handed out.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "transfer_engine/transport/shm/event_loop.h"
#include "transfer_engine/transport/shm/mapped_region.h"

namespace mooncake::shm {

// Regions are mapped when first needed and kept until their owner takes them back or is gone. Any thread, but for what
// EventLoop says.
class PeerRegions {
 public:
  struct Options {
    Uuid generation;  // of this process
    bool any_user = false;
    size_t max_asked = 16;         // questions to one peer without an answer
    size_t max_waiting = 1 << 20;  // operations in all
    // Where descriptors say what is handed out, and by whom.
    uint64_t SegmentRegion::* id = &SegmentRegion::shm_id;
    std::string SegmentDescriptor::* socket = &SegmentDescriptor::shm_socket;
    int64_t asker = 0;  // goes along with each question
  };
  // Makes a region usable that comes with a key: on the loop's thread, without locks held. `local` is what the first
  // operation that needed it moves.
  using Importer = std::function<Result<std::shared_ptr<MappedRegion>>(
      const std::shared_ptr<Socket>& owner, const Message& mapped, const MemoryRange& local)>;
  // Both on the loop's thread, without locks held.
  struct Callbacks {
    std::function<void(std::vector<PieceCopy>)> ready;
    std::function<void()> unusable;  // some regions are: RemoteMemory::Usable
    Importer importer = {};          // none: regions are files
  };

  PeerRegions(EventLoop& loop, Executor& workers, Options options, Callbacks callbacks);
  ~PeerRegions();  // after Stop

  // The region of the operation when it is mapped; else null, and the operation is kept: it becomes ready, or ends.
  std::shared_ptr<MappedRegion> FindOrAwait(TransferOperation& operation);
  // The copy that an operation means, or nothing: then it has ended with the error.
  static void Resolve(TransferOperation operation, const std::shared_ptr<MappedRegion>& region,
                      std::vector<PieceCopy>& copies);
  void Cancel(BatchId tag);
  // On the loop's thread, as its `before_wait`.
  TimePoint Tick();
  // After the loop has stopped: ends what waits with SHUTTING_DOWN, closes all connections.
  void Stop();

 private:
  struct Peer {
    Uuid generation;
    std::string name;  // of the segment
    std::string socket_name;
    std::shared_ptr<Socket> socket;                                            // null: not connected yet
    bool full = false;                                                         // the socket takes nothing at the moment
    std::unordered_map<uint64_t, std::shared_ptr<MappedRegion>> regions;       // by shm_id
    std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<MappedFile>> files;  // the loop's thread only
    std::map<uint64_t, std::vector<TransferOperation>> waiting;                // by shm_id, until it is answered
    std::map<uint64_t, MemoryRange> first_local;                               // of those
    std::deque<uint64_t> to_ask;
    std::set<uint64_t> asked;
  };
  // Operations that end once the lock is gone, and memory that is unmapped then.
  struct Leftovers {
    std::vector<std::pair<TransferOperation, Status>> ended;
    std::unique_ptr<Peer> peer;
  };

  Result<void> Connect(Peer& peer);
  Result<void> Ask(Peer& peer);
  void OnReady(const Uuid& generation);
  // False: nothing more to read now.
  bool HandleNext(const Uuid& generation);
  Result<void> Handle(Peer& peer, const Message& message, Fd fd);
  void OnMapped(Peer& peer, const Message& message, const Fd& fd);
  Result<std::shared_ptr<MappedRegion>> Map(Peer& peer, const Message& message, const Fd& fd);
  Result<std::shared_ptr<MappedRegion>> Import(Peer& peer, const Message& message);
  void OnRevoke(Peer& peer, const Message& message);
  void Drop(const Uuid& generation, const Status& why);
  // With the lock.
  void EndWaiting(Peer& peer, const Status& why, Leftovers& leftovers);
  TimePoint Expire(Leftovers& leftovers);
  static void End(Leftovers leftovers);

  EventLoop& loop_;
  Executor& workers_;
  const Options options_;
  const Callbacks callbacks_;
  std::mutex mutex_;  // what is sent under it never blocks
  bool stopped_ = false;
  size_t waiting_count_ = 0;
  std::unordered_map<Uuid, std::unique_ptr<Peer>> peers_;  // taken out on the loop's thread only
};

}  // namespace mooncake::shm
