// Registered ranges, their users and grants, under one lock that is never held across a callback.
#include "transfer_engine/region_registry.h"

#include <atomic>
#include <random>

#include "common/check.h"

namespace mooncake {

struct RegionRegistry::Holders {
  size_t count = 0;  // under the registry's lock
  std::atomic<bool> wanted{true};
  std::move_only_function<void()> then;        // when the last one goes; under the lock
  std::shared_ptr<const void> kept_for_grant;  // until then
};

namespace {

// Unpredictable, so that a key cannot be guessed; never 0.
uint64_t RandomKey() {
  std::random_device source;
  for (;;) {
    const uint64_t key = (static_cast<uint64_t>(source()) << 32) | source();
    if (key != 0) return key;
  }
}

std::string Range(uint64_t address, uint64_t length) {
  return fmt::format("[{:#x}, +{})", address, length);
}

}  // namespace

RegionRegistry::Use& RegionRegistry::Use::operator=(Use&& other) noexcept {
  if (this == &other) return *this;
  Release();
  owner_ = std::exchange(other.owner_, nullptr);
  region_ = std::move(other.region_);
  of_region_ = std::move(other.of_region_);
  of_grant_ = std::move(other.of_grant_);
  return *this;
}

void RegionRegistry::Use::Release() {
  if (owner_ == nullptr) return;
  RegionRegistry& owner = *std::exchange(owner_, nullptr);
  std::move_only_function<void()> then;
  std::shared_ptr<const void> kept;  // dies after the lock is gone
  {
    std::lock_guard lock(owner.mutex_);
    if (of_grant_ != nullptr && --of_grant_->count == 0 && !of_grant_->wanted) {
      then = std::move(of_grant_->then);
      kept = std::move(of_grant_->kept_for_grant);
    }
    if (--of_region_->count == 0) owner.unused_.notify_all();
  }
  region_.reset();
  of_region_.reset();
  of_grant_.reset();
  kept.reset();
  if (then) then();
}

RegionRegistry::Use RegionRegistry::Use::Again() const {
  MC_CHECK(owner_ != nullptr, "an empty use cannot be taken again");
  Use use;
  std::lock_guard lock(owner_->mutex_);
  use.owner_ = owner_;
  use.region_ = region_;
  use.of_region_ = of_region_;
  use.of_grant_ = of_grant_;
  ++of_region_->count;
  if (of_grant_ != nullptr) ++of_grant_->count;
  return use;
}

bool RegionRegistry::Use::wanted() const {
  return of_region_->wanted && (of_grant_ == nullptr || of_grant_->wanted);
}

RegionRegistry::RegionRegistry() = default;

RegionRegistry::~RegionRegistry() {
  for (const auto& [address, entry] : by_address_) {
    MC_CHECK(entry.holders->count == 0, "region {:#x} has {} users at the end", address, entry.holders->count);
  }
}

std::map<uint64_t, RegionRegistry::Entry>::iterator RegionRegistry::Before(uint64_t address) {
  const auto after = by_address_.upper_bound(address);
  return after == by_address_.begin() ? by_address_.end() : std::prev(after);
}

Result<std::optional<std::shared_ptr<Region>>> RegionRegistry::Reserve(uint64_t address, uint64_t length,
                                                                       RegionOptions options) {
  if (address == 0 || length == 0 || length > UINT64_MAX - address) {
    return Error(ErrorCode::INVALID_PARAMS, "memory {} cannot be registered", Range(address, length));
  }
  std::lock_guard lock(mutex_);
  if (const auto same = by_address_.find(address); same != by_address_.end() && same->second.region->length == length) {
    if (!same->second.published) {
      return Error(ErrorCode::ADDRESS_OVERLAPPED, "memory {} is being registered by another thread",
                   Range(address, length));
    }
    ++same->second.registrations;
    return std::nullopt;
  }
  const auto overlaps = [&](const Region& other) {
    return address < other.address + other.length && other.address < address + length;
  };
  const Region* conflict = nullptr;
  if (const auto before = Before(address); before != by_address_.end() && overlaps(*before->second.region)) {
    conflict = before->second.region.get();
  }
  if (const auto after = by_address_.lower_bound(address);
      conflict == nullptr && after != by_address_.end() && overlaps(*after->second.region)) {
    conflict = after->second.region.get();
  }
  if (conflict != nullptr) {
    return Error(ErrorCode::ADDRESS_OVERLAPPED, "memory {} overlaps the registered {}", Range(address, length),
                 Range(conflict->address, conflict->length));
  }
  auto region = std::make_shared<Region>();
  region->address = address;
  region->length = length;
  region->published.address = address;
  region->published.length = length;
  region->published.location = options.location;
  if (options.access == RegionAccess::kOpen) region->published.key = RandomKey();
  region->options = std::move(options);
  by_address_.emplace(address, Entry{.region = region, .holders = std::make_shared<Holders>()});
  return region;
}

void RegionRegistry::Publish(const std::shared_ptr<Region>& region) {
  std::lock_guard lock(mutex_);
  Entry& entry = by_address_.at(region->address);
  MC_CHECK(entry.region == region && !entry.published, "region {:#x} published twice", region->address);
  entry.published = true;
  if (region->published.key != 0) address_of_key_.emplace(region->published.key, region->address);
  ++revision_;
}

void RegionRegistry::Abandon(const std::shared_ptr<Region>& region) {
  std::lock_guard lock(mutex_);
  const auto entry = by_address_.find(region->address);
  MC_CHECK(entry != by_address_.end() && entry->second.region == region && !entry->second.published,
           "region {:#x} is no reservation", region->address);
  by_address_.erase(entry);
}

Result<std::optional<std::shared_ptr<Region>>> RegionRegistry::Unpublish(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = by_address_.find(address);
  if (found == by_address_.end() || !found->second.published) {
    return Error(ErrorCode::ADDRESS_NOT_REGISTERED, "no registered memory begins at {:#x}", address);
  }
  if (--found->second.registrations > 0) return std::nullopt;
  std::shared_ptr<Region> region = found->second.region;
  found->second.holders->wanted = false;
  leaving_.emplace(region.get(), found->second.holders);
  address_of_key_.erase(region->published.key);
  by_address_.erase(found);
  ++revision_;
  return region;
}

Result<void> RegionRegistry::WaitUnused(const std::shared_ptr<Region>& region, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto leaving = leaving_.find(region.get());
  if (leaving == leaving_.end()) return {};
  const std::shared_ptr<Holders> holders = leaving->second;
  if (!unused_.wait_until(lock, deadline.time(), [&] { return holders->count == 0; })) {
    return Error(ErrorCode::TRANSFER_TIMEOUT, "memory {} is still used by {} transfers",
                 Range(region->address, region->length), holders->count);
  }
  leaving_.erase(region.get());
  return {};
}

Result<RegionRegistry::Entry*> RegionRegistry::Covering(uint64_t address, uint64_t length) {
  const auto before = Before(address);
  if (before != by_address_.end() && before->second.published && before->second.region->Covers(address, length)) {
    return &before->second;
  }
  if (before == by_address_.end()) {
    return Error(ErrorCode::ADDRESS_NOT_REGISTERED, "memory {} is not registered", Range(address, length));
  }
  return Error(ErrorCode::ADDRESS_NOT_REGISTERED, "memory {} is not registered; the nearest region is {}",
               Range(address, length), Range(before->first, before->second.region->length));
}

RegionRegistry::Use RegionRegistry::MakeUse(Entry& entry, std::shared_ptr<Holders> of_grant) {
  Use use;
  use.owner_ = this;
  use.region_ = entry.region;
  use.of_region_ = entry.holders;
  ++entry.holders->count;
  if (of_grant != nullptr) ++of_grant->count;
  use.of_grant_ = std::move(of_grant);
  return use;
}

Result<RegionRegistry::Use> RegionRegistry::Find(uint64_t address, uint64_t length) {
  std::lock_guard lock(mutex_);
  return MakeUse(*MC_TRY(Covering(address, length)), nullptr);
}

Result<RegionRegistry::Use> RegionRegistry::FindByKey(uint64_t key, uint64_t address, uint64_t length, bool for_write) {
  const auto refusal = [&] {
    return Error(ErrorCode::ADDRESS_NOT_REGISTERED, "no memory {} is open for {} with this key", Range(address, length),
                 for_write ? "writing" : "reading");
  };
  std::lock_guard lock(mutex_);
  if (const auto open = address_of_key_.find(key); open != address_of_key_.end()) {
    Entry& entry = by_address_.at(open->second);
    if (!entry.region->Covers(address, length)) return refusal();
    return MakeUse(entry, nullptr);
  }
  const auto grant = grants_.find(key);
  if (grant == grants_.end() || (for_write && !grant->second.writable)) return refusal();
  const SegmentRegion granted{.address = grant->second.address, .length = grant->second.length};
  if (!granted.Covers(address, length)) return refusal();
  const auto entry = Covering(address, length);
  if (!entry) return refusal();
  return MakeUse(**entry, grant->second.holders);
}

Result<uint64_t> RegionRegistry::Grant(uint64_t address, uint64_t length, bool writable,
                                       std::shared_ptr<const void> keep_alive) {
  const uint64_t key = RandomKey();
  std::lock_guard lock(mutex_);
  const Entry& entry = *MC_TRY(Covering(address, length));
  const bool unreachable = entry.region->IsNpu() && !entry.region->published.staged;
  if (entry.region->options.access == RegionAccess::kLocal || unreachable) {
    return Error(ErrorCode::INVALID_PARAMS, "memory {} cannot be granted: it is {}", Range(address, length),
                 unreachable ? "NPU memory" : "local");
  }
  const bool added = grants_
                         .emplace(key, GrantEntry{.address = address,
                                                  .length = length,
                                                  .writable = writable,
                                                  .holders = std::make_shared<Holders>(),
                                                  .keep_alive = std::move(keep_alive)})
                         .second;
  MC_CHECK(added, "key {:#x} drawn twice", key);
  return key;
}

bool RegionRegistry::Revoke(uint64_t key, std::move_only_function<void()> then) {
  GrantEntry gone;  // dies after the lock is gone
  std::lock_guard lock(mutex_);
  const auto found = grants_.find(key);
  if (found == grants_.end()) return true;
  gone = std::move(found->second);
  grants_.erase(found);
  gone.holders->wanted = false;
  if (gone.holders->count == 0) return true;
  gone.holders->then = std::move(then);
  gone.holders->kept_for_grant = std::move(gone.keep_alive);
  return false;
}

std::vector<SegmentRegion> RegionRegistry::Published(uint64_t* revision) const {
  std::lock_guard lock(mutex_);
  if (revision != nullptr) *revision = revision_;
  std::vector<SegmentRegion> regions;
  for (const auto& [address, entry] : by_address_) {
    const RegionAccess access = entry.region->options.access;
    if (entry.published && access != RegionAccess::kLocal && access != RegionAccess::kLent) {
      regions.push_back(entry.region->published);
    }
  }
  return regions;
}

uint64_t RegionRegistry::revision() const {
  std::lock_guard lock(mutex_);
  return revision_;
}

size_t RegionRegistry::size() const {
  std::lock_guard lock(mutex_);
  return by_address_.size();
}

}  // namespace mooncake
