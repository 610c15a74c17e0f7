// What all processes see of one device.
#include "core/shared_device.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "core/config.h"
#include "core/report.h"
#include "core/segv.h"

namespace aclemu {
namespace {

[[noreturn]] void Unusable(const std::string& file, const std::string& why) {
  Log("ACLEMU_DIR: %s %s", file.c_str(), why.c_str());
  _exit(kBadConfigExit);
}

// This process among those of the directory: a file that it keeps locked as long as it lives. Closed files and the end
// of the process unlock it, in whatever namespace the others are.
struct Process {
  std::string uuid;
  int fd = -1;
};

Process& Self() {
  static Process* const self = new Process;
  return *self;
}

std::string ProcessFile(const char* uuid) {
  return Settings().dir + "/proc." + uuid;
}

// A child of fork shares the lock; it must not keep its parent alive in the eyes of the others.
void ForgetInChild() {
  if (Self().fd >= 0) close(Self().fd);
  Self().fd = -1;
}

void Register() {
  static std::once_flag once;
  std::call_once(once, [] {
    uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) != sizeof(random)) Broken("no random numbers");
    char uuid[36];
    snprintf(uuid, sizeof(uuid), "%016llx%016llx", static_cast<unsigned long long>(random[0]),
             static_cast<unsigned long long>(random[1]));
    Self().uuid = uuid;
    std::string path = ProcessFile(uuid);
    Self().fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (Self().fd < 0 || flock(Self().fd, LOCK_EX) != 0) Unusable(path, std::string("failed: ") + strerror(errno));
    pthread_atfork(nullptr, nullptr, ForgetInChild);
  });
}

uint64_t ControlBytes(uint32_t chunks) {
  uint64_t bytes = (sizeof(Control) + kPage - 1) / kPage * kPage;
  bytes += chunks * (sizeof(Tag) + sizeof(uint16_t));
  bytes = (bytes + kPage - 1) / kPage * kPage;
  return bytes + uint64_t{chunks} * kPagesPerChunk * sizeof(Tag);
}

int OpenLocked(const std::string& path) {
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) Unusable(path, std::string("cannot be opened: ") + strerror(errno));
  while (flock(fd, LOCK_EX) != 0) {
    if (errno != EINTR) Unusable(path, std::string("cannot be locked: ") + strerror(errno));
  }
  return fd;
}

void Resize(int fd, const std::string& path, uint64_t bytes) {
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0)
    Unusable(path, std::string("cannot be resized: ") + strerror(errno));
}

constexpr int kMaxDevices = 64;
std::mutex attach_mu;
std::array<std::atomic<SharedDevice*>, kMaxDevices> attached;

}  // namespace

// ASCEND_RT_VISIBLE_DEVICES=1,3: ascending ids, read up to the first bad entry.
const std::vector<int>& VisibleDevices() {
  static const std::vector<int>* const visible = [] {
    auto* ids = new std::vector<int>;
    long devices = Settings().devices;
    const char* text = getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (text == nullptr) {
      ids->resize(static_cast<size_t>(devices));
      std::iota(ids->begin(), ids->end(), 0);
      return ids;
    }
    while (true) {
      char* end = nullptr;
      long id = strtol(text, &end, 10);
      bool ascending = id >= 0 && (ids->empty() || id > ids->back());
      if (end == text || !ascending || id >= devices || (*end != ',' && *end != '\0')) return ids;
      ids->push_back(static_cast<int>(id));
      if (*end == '\0') return ids;
      text = end + 1;
    }
  }();
  return *visible;
}

bool Share::Held() const {
  return std::any_of(std::begin(holders), std::end(holders), [](const auto& word) { return word.load() != 0; });
}

uint64_t SharedDevice::StreamsInUse() {
  Lock lock(*this);
  return control_->streams;
}

void SharedDevice::SetLost(aclError code) {
  int32_t none = ACL_SUCCESS;
  if (!control_->lost.compare_exchange_strong(none, code)) return;
  syscall(SYS_futex, &control_->lost, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SharedDevice::AwaitLost() {
  while (!IsLost()) syscall(SYS_futex, &control_->lost, FUTEX_WAIT, ACL_SUCCESS, nullptr, nullptr, 0);
}

bool SharedDevice::Sharing() {
  return !Settings().dir.empty();
}

SharedDevice& SharedDevice::Of(int device) {
  auto& slot = attached.at(static_cast<size_t>(device));
  SharedDevice* found = slot.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  std::lock_guard lock(attach_mu);
  found = slot.load(std::memory_order_relaxed);
  if (found == nullptr) {
    found = new SharedDevice(device, VisibleDevices().at(static_cast<size_t>(device)));
    slot.store(found, std::memory_order_release);
  }
  return *found;
}

SharedDevice* SharedDevice::OfPhysical(int physical, int* device) {
  const std::vector<int>& visible = VisibleDevices();
  auto found = std::find(visible.begin(), visible.end(), physical);
  if (found == visible.end()) return nullptr;
  *device = static_cast<int>(found - visible.begin());
  return &Of(*device);
}

SharedDevice::SharedDevice(int device, int physical)
    : device_(device), physical_(physical), chunks_(static_cast<uint32_t>(Settings().hbm_bytes / kChunk)) {
  if (Sharing()) {
    OpenShared(Settings().dir);
  } else {
    OpenPrivate();
  }
}

void SharedDevice::OpenPrivate() {
  pool_fd_ = memfd_create("aclemu-hbm", MFD_CLOEXEC);
  if (pool_fd_ < 0 || ftruncate(pool_fd_, static_cast<off_t>(Settings().hbm_bytes)) != 0) {
    Broken("no memory file for a device");
  }
  Map(-1);
  Initialise();
  Lock lock(*this);
  ClaimOwner();
}

// Whether the control file must be made anew. Ends the process if it is in use by processes of another kind.
bool SharedDevice::IsStale(int fd, const std::string& control) const {
  struct stat info{};
  if (fstat(fd, &info) != 0 || info.st_size == 0) return true;
  auto head = std::make_unique<ControlHead>();
  ssize_t got = pread(fd, head.get(), sizeof(ControlHead), 0);
  constexpr ssize_t kFixed = offsetof(ControlHead, ready);
  if (got < kFixed || head->magic != kControlMagic) {
    if (got >= kFixed && head->magic == 0) return true;  // who made it died at once
    Unusable(control, "is no control file of the emulator; remove the directory");
  }
  if (got > kFixed && head->ready != 1) return true;
  if (head->layout != kControlLayout) {
    Unusable(control, "has layout " + std::to_string(head->layout) + " but this emulator has " +
                          std::to_string(kControlLayout) + "; remove the directory");
  }
  if (head->capacity == Settings().hbm_bytes && head->reserved == Settings().hbm_reserved) {
    struct stat memory{};
    if (info.st_size == static_cast<off_t>(ControlBytes(chunks_)) && fstat(pool_fd_, &memory) == 0 &&
        memory.st_size == static_cast<off_t>(Settings().hbm_bytes)) {
      return false;
    }
    Unusable(control, "or the memory file beside it was cut; remove the directory");
  }
  bool in_use = std::any_of(std::begin(head->owners), std::end(head->owners),
                            [&](const Owner& owner) { return owner.used.load() != 0 && !IsDead(owner); });
  if (!in_use) return true;
  Unusable(control, "is in use with ACLEMU_HBM=" + std::to_string(head->capacity) +
                        " ACLEMU_HBM_RESERVED=" + std::to_string(head->reserved) + " but this process has " +
                        std::to_string(Settings().hbm_bytes) + " and " + std::to_string(Settings().hbm_reserved));
}

void SharedDevice::OpenShared(const std::string& dir) {
  if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
    Unusable(dir, std::string("cannot be made: ") + strerror(errno));
  Register();
  std::string name = dir + "/dev" + std::to_string(physical_);
  std::string control = name + ".ctl", pool = name + ".hbm";
  // Who attaches, holds the lock of the control file: nobody else initialises or joins meanwhile.
  int fd = OpenLocked(control);
  pool_fd_ = open(pool.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (pool_fd_ < 0) Unusable(pool, std::string("cannot be opened: ") + strerror(errno));
  bool fresh = IsStale(fd, control);
  if (fresh) {
    Resize(fd, control, 0);
    Resize(fd, control, ControlBytes(chunks_));
    Resize(pool_fd_, pool, 0);
    Resize(pool_fd_, pool, Settings().hbm_bytes);
  }
  Map(fd);
  if (fresh) Initialise();
  {
    Lock lock(*this);
    SweepLocked();
    ClaimOwner();
  }
  flock(fd, LOCK_UN);  // the mapping keeps the file open
  close(fd);
}

void SharedDevice::Map(int fd) {
  int flags = MAP_NORESERVE | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  void* map = mmap(nullptr, ControlBytes(chunks_), PROT_READ | PROT_WRITE, flags, fd, 0);
  if (map == MAP_FAILED) Broken("no mapping for the state of a device");
  madvise(map, ControlBytes(chunks_), MADV_DONTFORK);
  if (fd >= 0) ExplainFullFile(map, ControlBytes(chunks_));
  control_ = static_cast<Control*>(map);
  auto* tables = static_cast<std::byte*>(map) + (sizeof(Control) + kPage - 1) / kPage * kPage;
  chunk_tags_ = reinterpret_cast<std::atomic<Tag>*>(tables);
  pages_taken_ = reinterpret_cast<std::atomic<uint16_t>*>(tables + chunks_ * sizeof(Tag));
  page_tags_ = reinterpret_cast<std::atomic<Tag>*>(static_cast<std::byte*>(map) + ControlBytes(chunks_) -
                                                   uint64_t{chunks_} * kPagesPerChunk * sizeof(Tag));
}

// The memory is zero.
void SharedDevice::Initialise() {
  pthread_mutexattr_t attributes;
  if (pthread_mutexattr_init(&attributes) != 0 || pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) != 0 ||
      pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) != 0 ||
      pthread_mutex_init(&control_->mutex, &attributes) != 0) {
    Broken("no lock for a device");
  }
  pthread_mutexattr_destroy(&attributes);
  control_->magic = kControlMagic;
  control_->layout = kControlLayout;
  control_->capacity = Settings().hbm_bytes;
  control_->reserved = Settings().hbm_reserved;
  uint64_t reserved_chunks = Settings().hbm_reserved / kChunk;
  for (uint64_t chunk = 0; chunk < reserved_chunks; ++chunk) chunk_tags_[chunks_ - 1 - chunk] = kTagReserved;
  Count();
  control_->ready = 1;
}

void SharedDevice::ClaimOwner() {
  for (Tag tag = kFirstOwner; tag < kOwners; ++tag) {
    Owner& owner = control_->owners[tag];
    if (owner.used.load() != 0) continue;
    owner.pid = getpid();
    owner.streams = 0;
    owner.events = 0;
    snprintf(owner.uuid, sizeof(owner.uuid), "%s", Self().uuid.c_str());
    owner.used = 1;
    self_ = tag;
    return;
  }
  Unusable(Settings().dir, "is used by " + std::to_string(kOwners - 1) + " processes already");
}

SharedDevice::Lock::Lock(SharedDevice& device) : device_(device) {
  int code = pthread_mutex_lock(&device.control_->mutex);
  if (code == 0) return;
  if (code != EOWNERDEAD || pthread_mutex_consistent(&device.control_->mutex) != 0)
    Broken("the lock of a device is lost");
  device.Recount();
  device.SweepLocked();
}

SharedDevice::Lock::~Lock() {
  pthread_mutex_unlock(&device_.control_->mutex);
}

bool SharedDevice::Sweep() {
  if (!Sharing()) return false;
  Lock lock(*this);
  return SweepLocked();
}

bool SharedDevice::IsDead(const Owner& owner) const {
  if (owner.uuid == Self().uuid) return false;
  std::string path = ProcessFile(owner.uuid);
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // Swept on another device already; unless somebody removed the whole directory while it is in use.
  if (fd < 0) return errno == ENOENT && access(ProcessFile(Self().uuid.c_str()).c_str(), F_OK) == 0;
  // A shared lock, so that two processes that look at the same time both get it.
  bool dead = flock(fd, LOCK_SH | LOCK_NB) == 0;
  close(fd);
  if (dead) unlink(path.c_str());
  return dead;
}

bool SharedDevice::SweepLocked() {
  std::vector<bool> dead(kOwners);
  bool any = false;
  for (Tag tag = kFirstOwner; tag < kOwners; ++tag) {
    const Owner& owner = control_->owners[tag];
    if (tag == self_ || owner.used.load() == 0 || !IsDead(owner)) continue;
    dead[tag] = true;
    any = true;
  }
  if (!any) return false;
  DropShares(dead);
  for (Tag tag = kFirstOwner; tag < kOwners; ++tag) {
    if (dead[tag]) control_->owners[tag].used = 0;
  }
  Recount();
  return true;
}

// What dead importers held is free; what a dead exporter shared lives on as long as somebody holds it.
void SharedDevice::DropShares(const std::vector<bool>& dead) {
  for (Tag i = 0; i < kShares; ++i) {
    Share& share = control_->shares[i];
    if (share.state.load() == Share::kUnused) continue;
    for (Tag tag = kFirstOwner; tag < kOwners; ++tag) {
      if (dead[tag]) share.holders[tag / 64].fetch_and(~(1ULL << tag % 64));
    }
    bool ownerless = share.state.load() == Share::kOrphan || dead[share.exporter];
    if (!ownerless) continue;
    if (!share.Held()) {
      share.state = Share::kUnused;
      continue;
    }
    Retag(control_->share_extents[i], share.extent_count, share.huge, share.exporter,
          static_cast<Tag>(kFirstShare + i));
    share.state = Share::kOrphan;
  }
}

void SharedDevice::Count() {
  Control& c = *control_;
  c.free_chunks = c.warm_chunks = c.split_chunks = c.free_pages = c.streams = c.events = 0;
  c.first_free = c.first_open = 0;
  for (uint32_t chunk = 0; chunk < chunks_; ++chunk) {
    Tag tag = chunk_tags_[chunk].load();
    c.free_chunks += tag == kTagFree || tag == kTagWarm;
    c.warm_chunks += tag == kTagWarm;
    if (tag != kTagSplit) continue;
    const std::atomic<Tag>* pages = page_tags(chunk);
    auto free_pages =
        std::count_if(pages, pages + kPagesPerChunk, [](const auto& page) { return page.load() == kTagFree; });
    pages_taken_[chunk] = static_cast<uint16_t>(kPagesPerChunk - free_pages);
    c.free_pages += static_cast<uint64_t>(free_pages);
    ++c.split_chunks;
  }
  for (const Owner& owner : c.owners) {
    if (owner.used.load() == 0) continue;
    c.streams += owner.streams.load();
    c.events += owner.events.load();
  }
}

void SharedDevice::Recount() {
  Count();
  std::vector<bool> gone(UINT16_MAX + 1);
  for (Tag tag = kFirstOwner; tag < kOwners; ++tag) gone[tag] = control_->owners[tag].used.load() == 0;
  for (Tag i = 0; i < kShares; ++i) gone[kFirstShare + i] = control_->shares[i].state.load() == Share::kUnused;
  for (uint32_t chunk = 0; chunk < chunks_; ++chunk) {
    Tag tag = chunk_tags_[chunk].load();
    if (gone[tag]) FreeChunk(chunk);
    if (tag != kTagSplit) continue;
    if (pages_taken_[chunk].load() == 0) {  // its owner died right after it split it
      --control_->split_chunks;
      control_->free_pages -= kPagesPerChunk;
      FreeChunk(chunk);
      continue;
    }
    for (uint32_t page = 0; page < kPagesPerChunk && chunk_tags_[chunk].load() == kTagSplit; ++page) {
      if (gone[page_tags(chunk)[page].load()]) FreePage(chunk, page);
    }
  }
}

bool SharedDevice::MayStayWarm() const {
  return control_->warm_chunks < Settings().keep_bytes / kChunk;
}

void SharedDevice::Punch(uint32_t chunk) {
  fallocate(pool_fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(chunk * kChunk), kChunk);
}

void SharedDevice::MarkFree(uint32_t chunk, bool warm) {
  chunk_tags_[chunk] = warm ? kTagWarm : kTagFree;
  ++control_->free_chunks;
  control_->warm_chunks += warm;
  control_->first_free = std::min(control_->first_free, chunk);
}

void SharedDevice::FreeChunk(uint32_t chunk) {
  bool warm = MayStayWarm();
  if (!warm) Punch(chunk);
  MarkFree(chunk, warm);
}

void SharedDevice::FreePage(uint32_t chunk, uint32_t page) {
  page_tags(chunk)[page] = kTagFree;
  uint16_t left = --pages_taken_[chunk];
  ++control_->free_pages;
  control_->first_open = std::min(control_->first_open, chunk);
  if (left > 0) return;
  --control_->split_chunks;
  control_->free_pages -= kPagesPerChunk;
  FreeChunk(chunk);
}

void SharedDevice::FreeExtents(const Extent* extents, size_t count, bool huge, Tag tag) {
  for (const Extent* extent = extents; extent < extents + count; ++extent) {
    for (uint64_t at = extent->offset; at < extent->offset + extent->bytes; at += huge ? kChunk : kPage) {
      auto chunk = static_cast<uint32_t>(at / kChunk), page = static_cast<uint32_t>(at % kChunk / kPage);
      if (huge && chunk_tags_[chunk].load() == tag) FreeChunk(chunk);
      if (!huge && chunk_tags_[chunk].load() == kTagSplit && page_tags(chunk)[page].load() == tag)
        FreePage(chunk, page);
    }
  }
}

void SharedDevice::Retag(const Extent* extents, size_t count, bool huge, Tag from, Tag to) {
  for (const Extent* extent = extents; extent < extents + count; ++extent) {
    for (uint64_t at = extent->offset; at < extent->offset + extent->bytes; at += huge ? kChunk : kPage) {
      auto chunk = static_cast<uint32_t>(at / kChunk);
      auto& tag = huge ? chunk_tags_[chunk] : page_tags(chunk)[at % kChunk / kPage];
      Tag expected = from;
      tag.compare_exchange_strong(expected, to);
    }
  }
}

bool SharedDevice::TakeCounted(std::atomic<uint32_t> Owner::* mine, uint64_t ControlHead::* all, uint64_t limit) {
  Lock lock(*this);
  if (control_->*all >= limit && !(Sharing() && SweepLocked())) return false;
  if (control_->*all >= limit) return false;
  ++(control_->owners[self_].*mine);
  ++(control_->*all);
  return true;
}

void SharedDevice::GiveCounted(std::atomic<uint32_t> Owner::* mine, uint64_t ControlHead::* all) {
  Lock lock(*this);
  --(control_->owners[self_].*mine);
  --(control_->*all);
}

}  // namespace aclemu
