// Memory shared between processes.
#include "core/shares.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "core/report.h"

namespace aclemu {
namespace {

constexpr uint64_t kNonceMask = (1ULL << 40) - 1;

uint64_t NewNonce() {
  uint64_t nonce = 0;
  while ((nonce & kNonceMask) == 0) {
    if (getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce)) Broken("no random numbers");
  }
  return nonce & kNonceMask;
}

bool IsMine(const Share& share, const ShareKey& key, SharedDevice& device) {
  return share.state.load() == Share::kLive && share.nonce == key.nonce && share.exporter == device.self();
}

uint64_t Bit(Tag tag) {
  return 1ULL << tag % 64;
}

}  // namespace

std::string ToText(const ShareKey& key) {
  char text[kKeyChars + 1];
  int used = snprintf(text, sizeof(text), "aclemu-%02x-%04x-%010llx-", static_cast<unsigned>(key.physical), key.index,
                      static_cast<unsigned long long>(key.nonce));
  memset(text + used, '0', kKeyChars - static_cast<size_t>(used));
  return std::string(text, kKeyChars);
}

std::optional<ShareKey> FromText(const char* text, size_t chars) {
  if (chars != kKeyChars) return std::nullopt;
  char copy[kKeyChars + 1] = "";
  memcpy(copy, text, kKeyChars);
  unsigned physical = 0, index = 0;
  unsigned long long nonce = 0;
  if (sscanf(copy, "aclemu-%2x-%4x-%10llx-", &physical, &index, &nonce) != 3) return std::nullopt;
  ShareKey key{static_cast<int>(physical), index, nonce};
  if (index >= kShares || ToText(key) != copy) return std::nullopt;
  return key;
}

uint64_t ToNumber(const ShareKey& key) {
  return static_cast<uint64_t>(key.physical) << 56 | uint64_t{key.index} << 40 | key.nonce;
}

std::optional<ShareKey> FromNumber(uint64_t number) {
  ShareKey key{static_cast<int>(number >> 56), static_cast<uint32_t>(number >> 40 & 0xFFFF), number & kNonceMask};
  if (key.index >= kShares || key.nonce == 0) return std::nullopt;
  return key;
}

Import::~Import() {
  if (!held) return;
  SharedDevice::Lock lock(device);
  Share& share = device.control().shares[key.index];
  share.holders[device.self() / 64].fetch_and(~Bit(device.self()));
  if (share.state.load() != Share::kOrphan || share.Held()) return;
  // The last one who had it after its owner went.
  device.FreeExtents(device.control().share_extents[key.index], share.extent_count, share.huge,
                     static_cast<Tag>(kFirstShare + key.index));
  share.state = Share::kUnused;
}

ShareAnswer Offer(SharedDevice& device, ShareKind kind, const std::vector<Extent>& extents, bool huge, bool open_to_all,
                  ShareKey* key) {
  if (extents.size() > kShareExtents) return ShareAnswer::kFull;
  SharedDevice::Lock lock(device);
  Share* begin = device.control().shares;
  Share* share = std::find_if(begin, begin + kShares, [](const Share& s) { return s.state.load() == Share::kUnused; });
  if (share == begin + kShares) return ShareAnswer::kFull;
  auto index = static_cast<uint32_t>(share - begin);
  share->kind = kind;
  share->nonce = NewNonce();
  share->exporter = device.self();
  share->open_to_all = open_to_all;
  share->huge = huge;
  share->pid_count = 0;
  for (auto& word : share->holders) word = 0;
  share->bytes = extents.back().start + extents.back().bytes;
  share->extent_count = static_cast<uint32_t>(extents.size());
  std::copy(extents.begin(), extents.end(), device.control().share_extents[index]);
  share->state = Share::kLive;  // last: a stop before leaves nothing
  *key = {device.physical(), index, share->nonce};
  return ShareAnswer::kDone;
}

ShareAnswer AllowPids(const ShareKey& key, ShareKind kind, const int32_t* pids, size_t count) {
  int logical = 0;
  SharedDevice* device = SharedDevice::OfPhysical(key.physical, &logical);
  if (device == nullptr) return ShareAnswer::kInvisible;
  SharedDevice::Lock lock(*device);
  Share& share = device->control().shares[key.index];
  if (share.kind != kind || !IsMine(share, key, *device)) return ShareAnswer::kUnknown;
  if (count > kSharePids - share.pid_count) return ShareAnswer::kFull;
  std::copy(pids, pids + count, share.pids + share.pid_count);
  share.pid_count += static_cast<uint32_t>(count);
  return ShareAnswer::kDone;
}

ShareAnswer Take(const ShareKey& key, ShareKind kind, std::shared_ptr<Import>* out) {
  int logical = 0;
  SharedDevice* device = SharedDevice::OfPhysical(key.physical, &logical);
  if (device == nullptr) return ShareAnswer::kInvisible;
  device->Sweep();  // what a dead process offered is gone
  auto import = std::make_shared<Import>(*device, key);
  auto answer = [&] {
    SharedDevice::Lock lock(*device);
    Share& share = device->control().shares[key.index];
    if (share.state.load() != Share::kLive || share.nonce != key.nonce || share.kind != kind)
      return ShareAnswer::kUnknown;
    if (share.exporter == device->self()) return ShareAnswer::kOwn;
    auto& word = share.holders[device->self() / 64];
    if ((word.load() & Bit(device->self())) != 0) return ShareAnswer::kTwice;
    const int32_t* end = share.pids + share.pid_count;
    if (!share.open_to_all && std::find<const int32_t*>(share.pids, end, getpid()) == end)
      return ShareAnswer::kNotAllowed;
    word.fetch_or(Bit(device->self()));
    import->held = true;
    import->bytes = share.bytes;
    import->huge = share.huge;
    const Extent* extents = device->control().share_extents[key.index];
    import->extents.assign(extents, extents + share.extent_count);
    return ShareAnswer::kDone;
  }();
  if (answer == ShareAnswer::kDone) *out = std::move(import);
  return answer;
}

Withdrawal Withdraw(const ShareKey& key, bool force) {
  int logical = 0;
  SharedDevice* device = SharedDevice::OfPhysical(key.physical, &logical);
  if (device == nullptr) return Withdrawal::kEnded;
  device->Sweep();  // a dead importer holds nothing
  SharedDevice::Lock lock(*device);
  Share& share = device->control().shares[key.index];
  if (!IsMine(share, key, *device)) return Withdrawal::kEnded;
  if (!share.Held()) {
    share.state = Share::kUnused;
    return Withdrawal::kEnded;
  }
  if (!force) return Withdrawal::kStillHeld;
  device->Retag(device->control().share_extents[key.index], share.extent_count, share.huge, device->self(),
                static_cast<Tag>(kFirstShare + key.index));
  share.state = Share::kOrphan;
  return Withdrawal::kHandedOn;
}

IpcKeys& IpcKeys::Get() {
  static IpcKeys* const keys = new IpcKeys;
  return *keys;
}

void IpcKeys::AddExport(const Export& exported) {
  std::lock_guard lock(mu_);
  exports_.push_back(exported);
}

bool IpcKeys::IsExport(const ShareKey& key) {
  std::lock_guard lock(mu_);
  return std::any_of(exports_.begin(), exports_.end(), [&](const Export& e) { return e.key == key; });
}

std::vector<ShareKey> IpcKeys::ExportsIn(uintptr_t begin, uint64_t bytes) {
  std::vector<ShareKey> keys;
  std::lock_guard lock(mu_);
  for (const Export& e : exports_) {
    if (e.begin < begin + bytes && begin < e.begin + e.bytes) keys.push_back(e.key);
  }
  return keys;
}

bool IpcKeys::EndExport(const ShareKey& key, bool force) {
  std::lock_guard lock(mu_);
  auto found = std::find_if(exports_.begin(), exports_.end(), [&](const Export& e) { return e.key == key; });
  if (found == exports_.end()) return true;
  Withdrawal withdrawal = Withdraw(key, force);
  if (withdrawal == Withdrawal::kStillHeld) return false;
  auto block = found->block.lock();
  if (withdrawal == Withdrawal::kHandedOn && block != nullptr) block->shared = true;
  exports_.erase(found);
  return true;
}

void IpcKeys::AddImport(const ShareKey& key, int device, uintptr_t base) {
  std::lock_guard lock(mu_);
  imports_.push_back({key, device, base});
}

uintptr_t IpcKeys::ImportBase(const ShareKey& key) {
  std::lock_guard lock(mu_);
  auto found = std::find_if(imports_.begin(), imports_.end(), [&](const Imported& i) { return i.key == key; });
  return found == imports_.end() ? 0 : found->base;
}

void IpcKeys::RemoveImport(const ShareKey& key) {
  std::lock_guard lock(mu_);
  std::erase_if(imports_, [&](const Imported& i) { return i.key == key; });
}

void IpcKeys::DropDevice(int device) {
  std::vector<ShareKey> ending;
  {
    std::lock_guard lock(mu_);
    std::erase_if(imports_, [&](const Imported& i) { return i.device == device; });
    for (const Export& e : exports_) {
      if (e.device == device) ending.push_back(e.key);
    }
  }
  for (const ShareKey& key : ending) EndExport(key, true);
}

}  // namespace aclemu
