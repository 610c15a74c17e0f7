// Memory this process has registered: which ranges, of what kind, who may reach them, and who is using them now.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "transfer_engine/segment.h"

namespace mooncake {

enum class RegionAccess : uint8_t {
  kLocal,    // not published: only a source or target of this process's own requests
  kByGrant,  // published, but over tcp only grants open it (rdma and same-host peers get the whole region)
  kOpen,     // any peer that knows the segment may read and write it
  kLent,     // as kByGrant, but in no descriptor: peers are told of parts, one at a time
};

// Part of a memfd that holds a region, so that processes of the same host can map it. The registry does not own it.
struct SharedMemory {
  int memfd = -1;
  uint64_t offset = 0;  // of the region's first byte
};

struct RegionOptions {
  std::string location = "*";  // "*": found out from the memory itself
  RegionAccess access = RegionAccess::kOpen;
  int32_t device_id = -1;  // of NPU memory; -1: host memory
  std::optional<SharedMemory> shared;
};

// One registered run. Immutable but for what transports add while it is being registered.
struct Region {
  uint64_t address = 0;
  uint64_t length = 0;
  RegionOptions options;
  SegmentRegion published;  // keys are filled in by the transports

  bool IsNpu() const { return options.device_id >= 0; }
  bool Covers(uint64_t first, uint64_t bytes) const { return published.Covers(first, bytes); }
};

// Any thread.
class RegionRegistry {
 private:
  struct Holders;

 public:
  // A use of a region or a grant by a transfer. While one lives the region's removal waits. Move-only, any thread.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept { *this = std::move(other); }
    Use& operator=(Use&& other) noexcept;
    ~Use() { Release(); }
    void Release();
    explicit operator bool() const { return owner_ != nullptr; }
    const Region& region() const { return *region_; }
    // One more use of the same; this one is not empty.
    Use Again() const;
    // False once the region or grant is being removed: a use that can stop early should.
    bool wanted() const;

   private:
    friend class RegionRegistry;
    RegionRegistry* owner_ = nullptr;
    std::shared_ptr<const Region> region_;
    std::shared_ptr<Holders> of_region_;
    std::shared_ptr<Holders> of_grant_;  // null without one
  };

  RegionRegistry();
  ~RegionRegistry();  // no use may be left
  RegionRegistry(const RegionRegistry&) = delete;
  RegionRegistry& operator=(const RegionRegistry&) = delete;

  // A new region, with a random key if it is kOpen; nobody finds it before Publish. nullopt: exactly this range is
  // registered already, and is counted once more. INVALID_PARAMS for length 0 or a range that wraps,
  // ADDRESS_OVERLAPPED with both ranges for a partial overlap.
  Result<std::optional<std::shared_ptr<Region>>> Reserve(uint64_t address, uint64_t length, RegionOptions options);
  // After all transports have registered it. From here on it is found and part of Published().
  void Publish(const std::shared_ptr<Region>& region);
  // Takes back a reservation that was not published.
  void Abandon(const std::shared_ptr<Region>& region);

  // Counts down; the last one takes the region out of sight and returns it: transports withdraw it, then
  // WaitUnused. nullopt: registered more often than that. ADDRESS_NOT_REGISTERED unless `address` is a region's start.
  Result<std::optional<std::shared_ptr<Region>>> Unpublish(uint64_t address);
  // Until no use is left; TRANSFER_TIMEOUT with the number of users when the deadline passes first.
  Result<void> WaitUnused(const std::shared_ptr<Region>& region, Deadline deadline);

  // The published region that covers [address, address + length), held; ADDRESS_NOT_REGISTERED with the nearest
  // region otherwise.
  Result<Use> Find(uint64_t address, uint64_t length);
  // For a peer's request: the region or grant of that key must cover the range and allow writing if asked for.
  // ADDRESS_NOT_REGISTERED otherwise; the text does not tell a stranger which keys exist.
  Result<Use> FindByKey(uint64_t key, uint64_t address, uint64_t length, bool for_write);

  // Opens part of a published region to whoever has the returned key (never 0): host memory over tcp, staged NPU memory
  // over what it is lent by. `keep_alive` is dropped with the grant. ADDRESS_NOT_REGISTERED when no published region
  // covers it, INVALID_PARAMS when that cannot be granted.
  Result<uint64_t> Grant(uint64_t address, uint64_t length, bool writable, std::shared_ptr<const void> keep_alive);
  // No request with this key begins any more. True: none is under way either. False: `then` runs when the last one has
  // ended, on the thread that ended it.
  bool Revoke(uint64_t key, std::move_only_function<void()> then = {});

  // Entries for the descriptor: kByGrant and kOpen regions, sorted. `revision` grows with every change.
  std::vector<SegmentRegion> Published(uint64_t* revision = nullptr) const;
  uint64_t revision() const;
  size_t size() const;

 private:
  struct Entry {
    std::shared_ptr<Region> region;
    std::shared_ptr<Holders> holders;
    size_t registrations = 1;
    bool published = false;
  };
  struct GrantEntry {
    uint64_t address = 0;
    uint64_t length = 0;
    bool writable = false;
    std::shared_ptr<Holders> holders;
    std::shared_ptr<const void> keep_alive;
  };
  // The entry whose region covers or begins last before the address; end() when there is none.
  std::map<uint64_t, Entry>::iterator Before(uint64_t address);
  Result<Entry*> Covering(uint64_t address, uint64_t length);
  Use MakeUse(Entry& entry, std::shared_ptr<Holders> of_grant);

  mutable std::mutex mutex_;
  std::condition_variable unused_;  // some region lost its last use
  uint64_t revision_ = 1;
  std::map<uint64_t, Entry> by_address_;
  std::unordered_map<uint64_t, uint64_t> address_of_key_;  // of kOpen regions
  std::unordered_map<uint64_t, GrantEntry> grants_;
  std::unordered_map<const Region*, std::shared_ptr<Holders>> leaving_;  // unpublished, perhaps in use
};

}  // namespace mooncake
