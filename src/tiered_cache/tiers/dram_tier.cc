// Mapping, NUMA placement and block hand-out of the DRAM tier.
#include "tiered_cache/tiers/dram_tier.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/byte_size.h"
#include "common/check.h"
#include "common/log.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace mooncake {
namespace {

constexpr size_t kPrefaultStep = 32 << 20;

Result<void> BindToNode(std::byte* base, size_t bytes, int node) {
  if (access(fmt::format("/sys/devices/system/node/node{}", node).c_str(), F_OK) != 0) {
    return Error(ErrorCode::INVALID_PARAMS, "numa_node {} does not exist on this host", node);
  }
  std::vector<unsigned long> mask(static_cast<size_t>(node) / 64 + 1, 0);
  mask[node / 64] = 1UL << (node % 64);
  if (syscall(SYS_mbind, base, bytes, MPOL_BIND, mask.data(), mask.size() * 64 + 1, 0) != 0) {
    return Error(ErrorCode::INTERNAL_ERROR, "binding {} to NUMA node {}: {}", FormatBytes(bytes), node,
                 std::strerror(errno));
  }
  return {};
}

}  // namespace

// A slice of the mapping; goes back to the allocator when destroyed.
class DramTier::Buffer final : public HostBuffer {
 public:
  Buffer(DramTier& tier, OffsetAllocator::Range range, size_t size) : tier_(tier), range_(range), size_(size) {}
  ~Buffer() override { tier_.Release(range_); }
  size_t size() const override { return size_; }
  std::byte* data() const override { return tier_.mapping_.base + range_.offset; }

 private:
  DramTier& tier_;
  const OffsetAllocator::Range range_;
  const size_t size_;  // as asked; the range is rounded up
};

Result<std::shared_ptr<DramTier>> DramTier::Open(const Options& options) {
  struct sysinfo host{};
  if (sysinfo(&host) != 0) return Error(ErrorCode::INTERNAL_ERROR, "sysinfo: {}", std::strerror(errno));
  const size_t total = host.totalram * host.mem_unit;
  if (options.promised > total || options.capacity > total - options.promised) {
    return Error(ErrorCode::INVALID_PARAMS, "DRAM tier of {} B ({}) does not fit: the host has {}{}", options.capacity,
                 FormatBytes(options.capacity), FormatBytes(total), PromisedText(options.promised));
  }
  int memfd = memfd_create("mooncake_dram_tier", MFD_CLOEXEC);
  if (memfd >= 0 && memfd <= STDERR_FILENO) {
    // The process runs with closed standard streams: as one of them, whatever it prints would land in the tier.
    const int above = fcntl(memfd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int error = errno;
    close(memfd);
    errno = error;
    memfd = above;
  }
  if (memfd < 0) return Error(ErrorCode::NO_AVAILABLE_HANDLE, "memfd_create: {}", std::strerror(errno));
  if (ftruncate(memfd, static_cast<off_t>(options.capacity)) != 0) {
    const int error = errno;
    close(memfd);
    return Error(ErrorCode::NO_AVAILABLE_HANDLE, "sizing DRAM tier to {} B: {}", options.capacity,
                 std::strerror(error));
  }
  void* base = mmap(nullptr, options.capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memfd, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    close(memfd);
    return Error(ErrorCode::NO_AVAILABLE_HANDLE, "mapping DRAM tier of {} B: {}", options.capacity,
                 std::strerror(error));
  }
  Info info{Uuid::Random(), "DRAM", MemoryType::DRAM, options.capacity, options.priority, options.tags};
  std::shared_ptr<DramTier> tier(
      new DramTier(std::move(info), {static_cast<std::byte*>(base), options.capacity, memfd}));
  if (options.numa_node) MC_TRY(BindToNode(tier->mapping_.base, options.capacity, *options.numa_node));
  if (options.prefault) tier->StartPrefault();
  return tier;
}

DramTier::DramTier(Info info, Mapping mapping)
    : CacheTier(std::move(info)), mapping_(mapping), allocator_(mapping.bytes) {}

DramTier::~DramTier() {
  stopping_.store(true);
  if (prefault_.joinable()) prefault_.join();
  MC_CHECK(usage() == 0, "DRAM tier destroyed with {} B handed out", usage());
  munmap(mapping_.base, mapping_.bytes);
  close(mapping_.memfd);
}

void DramTier::StartPrefault() {
  prefault_ = std::thread([this] {
    for (size_t done = 0; done < mapping_.bytes && !stopping_.load(); done += kPrefaultStep) {
      const size_t step = std::min(kPrefaultStep, mapping_.bytes - done);
      if (madvise(mapping_.base + done, step, MADV_POPULATE_WRITE) != 0) {
        // Older kernels lack it: pages then come with the first put. Out of memory must not pass in silence.
        if (errno != EINVAL) log::Warn("touching DRAM tier pages at {}: {}", FormatBytes(done), std::strerror(errno));
        return;
      }
    }
  });
}

Result<DataSource> DramTier::Allocate(size_t size) {
  if (size == 0) return Error(ErrorCode::INVALID_PARAMS, "tier DRAM: a block of 0 B");
  std::optional<OffsetAllocator::Range> range;
  {
    std::lock_guard lock(mutex_);
    range = allocator_.Allocate(size);
  }
  if (!range) {
    return Error(ErrorCode::NO_AVAILABLE_HANDLE, "tier DRAM has no hole of {} B (used {} of {} B)", size, usage(),
                 info().capacity);
  }
  return DataSource{std::make_unique<Buffer>(*this, *range, size), MemoryType::DRAM};
}

size_t DramTier::usage() const {
  std::lock_guard lock(mutex_);
  return allocator_.allocated_bytes();
}

void DramTier::Release(OffsetAllocator::Range range) {
  std::lock_guard lock(mutex_);
  allocator_.Free(range);
}

}  // namespace mooncake
