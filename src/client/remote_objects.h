// Objects of other clients: finds their owners through the master and moves the values.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "client/master_link.h"
#include "client/object_io.h"
#include "client/remote_call.h"
#include "common/clock.h"
#include "device/staging_pool.h"

namespace mooncake {

// Any thread. Requests to one owner are grouped and pipelined; each key has its own result. When a call returns, the
// memory of all its items has been let go of.
class RemoteObjects {
 public:
  struct Parts {  // all outlive this
    MasterLink& master;
    PeerLinks& peers;
    WindowTransport& transport;
    StagingPool& staging;
    Uuid self;
  };
  explicit RemoteObjects(Parts parts) : parts_(parts) {}

  // Where to put a value of `size` bytes; asked once per attempt, on any thread. An error becomes the key's result.
  using Target = std::function<Result<MemoryRange>(uint64_t size)>;
  struct Read {
    std::string_view key;
    Target target;
    bool to_device = false;  // the target is NPU memory
    Result<ObjectInfo> result = std::unexpected(Status(ErrorCode::OBJECT_NOT_FOUND, {}));
    // state of the call
    std::unordered_set<Uuid> failed;  // owners that did not deliver
    bool done = false;
  };
  // OBJECT_NOT_FOUND is a plain miss. An owner that fails is passed over for another one, after a fresh look-up.
  void Get(std::span<Read> reads, Deadline deadline);

  struct Write {
    std::string_view key;
    MemoryRange value;
    Result<void> result;
    bool done = false;
    bool held = false;         // another client is said to own the key already: to be confirmed
    bool stored_once = false;  // ... and refused ours after we had stored it
  };
  // The master chooses owners; a key that has one already succeeds without a transfer. One further attempt elsewhere
  // when the chosen owner does not answer.
  void Put(std::span<Write> writes, Deadline deadline);

  // Per key: 1 present, 0 absent, or why that is unknown.
  std::vector<Result<bool>> Exist(std::span<const std::string> keys, Deadline deadline);
  // Asks the owners themselves, which counts as a use. Per key: whether one has it, or why the owners it should have
  // did not say.
  std::vector<Result<bool>> Confirm(std::span<const std::string> keys, Deadline deadline);
  Result<ObjectInfo> Size(const std::string& key, Deadline deadline);
  // Per key, OBJECT_NOT_FOUND when no other client has it.
  std::vector<Result<void>> Remove(std::span<const std::string> keys, Deadline deadline);
  // Number of objects other clients removed.
  Result<uint64_t> RemoveAll(Deadline deadline);

 private:
  class OwnerReader;
  class OwnerWriter;
  using ReadRefs = std::vector<Read*>;
  using WriteRefs = std::vector<Write*>;

  Result<protocol::LookupReply> Lookup(std::span<const KeyDigest> keys, Deadline deadline);
  void GetRound(const ReadRefs& reads, Deadline deadline);
  void AskOwners(const protocol::LookupReply& lookup, std::span<const std::string> keys, uint16_t method,
                 Deadline deadline, const std::function<void(size_t, const Result<int32_t>&)>& answer);
  void ConfirmHeld(const WriteRefs& writes, Deadline deadline);
  void PutRound(const WriteRefs& writes, std::vector<Uuid>& exclude, Deadline deadline);

  // `reply` stays where it is until it has been waited for.
  void CallPeer(const protocol::ClientAddress& client, uint16_t method, std::string body, Deadline deadline,
                PendingReply& reply);

  const Parts parts_;
};

}  // namespace mooncake
