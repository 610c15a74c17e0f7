// Mapping, NUMA placement and block hand-out of the DRAM tier.
#include "tiered_cache/tiers/dram_tier.h"

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
#include "common/memfd.h"
#include "tiered_cache/tiers/huge_pages.h"

namespace mooncake {
namespace {

constexpr size_t kTouchStep = 32 << 20;
constexpr size_t kPage = 4096;

Result<void> CheckHostMemory(const DramTier::Options& options) {
  struct sysinfo host{};
  if (sysinfo(&host) != 0) return Error(ErrorCode::INTERNAL_ERROR, "sysinfo: {}", std::strerror(errno));
  const size_t total = host.totalram * host.mem_unit;
  if (options.promised > total || options.capacity > total - options.promised) {
    return Error(ErrorCode::INVALID_PARAMS, "DRAM tier of {} B ({}) does not fit: the host has {}{}", options.capacity,
                 FormatBytes(options.capacity), FormatBytes(total), PromisedText(options.promised));
  }
  return {};
}

std::string TierText(const DramTier::Options& options) {
  return fmt::format("DRAM tier of {} B ({}) on huge pages of {}", options.capacity, FormatBytes(options.capacity),
                     FormatBytes(options.huge_page_bytes));
}

std::unexpected<Status> TooFewHugePages(const DramTier::Options& options, const HugePagePool& pool) {
  const size_t wanted = options.capacity / options.huge_page_bytes;
  const size_t missing = wanted - std::min(wanted, pool.free);
  return Error(ErrorCode::NO_AVAILABLE_HANDLE, "{} needs {} pages, {} of {} are free{}; {}", TierText(options), wanted,
               pool.free, pool.total, options.numa_node ? fmt::format(" on NUMA node {}", *options.numa_node) : "",
               HowToReserveHugePages(options.huge_page_bytes, pool.total + missing, options.numa_node));
}

// Asked before the mapping is made, so that the error has the numbers; the mapping itself is what reserves the pages.
Result<void> CheckHugePages(const DramTier::Options& options) {
  const size_t page = options.huge_page_bytes;
  MC_TRY(CheckHugePageSize(page));
  if (options.capacity % page != 0) {
    return Error(ErrorCode::INVALID_PARAMS, "{}: the capacity must be a multiple of the page; the next one is {} B",
                 TierText(options), (options.capacity / page + 1) * page);
  }
  const auto pool = GetHugePagePool(page, options.numa_node);
  if (!pool) return Annotate(pool.error(), TierText(options));
  if (pool->free < options.capacity / page) return TooFewHugePages(options, *pool);
  return {};
}

Result<void> CheckNode(int node) {
  if (access(fmt::format("/sys/devices/system/node/node{}", node).c_str(), F_OK) == 0) return {};
  return Error(ErrorCode::INVALID_PARAMS, "numa_node {} does not exist on this host", node);
}

Result<void> BindToNode(std::byte* base, size_t bytes, int node) {
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
  std::byte* data() const override { return tier_.mapping_->base + range_.offset; }

 private:
  DramTier& tier_;
  const OffsetAllocator::Range range_;
  const size_t size_;  // as asked; the range is rounded up
};

DramTier::Mapping::~Mapping() {
  munmap(base, bytes);
}

Result<std::unique_ptr<DramTier::Mapping>> DramTier::Map(const Options& options) {
  auto memfd = CreateMemfd("mooncake_dram_tier", options.capacity, options.huge_page_bytes);
  if (!memfd) return Annotate(memfd.error(), "DRAM tier");
  void* const base = MapMemfd(memfd->get(), options.capacity, options.huge_page_bytes);
  if (base == MAP_FAILED) {
    const int error = errno;
    if (options.huge_page_bytes != 0 && error == ENOMEM) {
      return TooFewHugePages(options, MC_TRY(GetHugePagePool(options.huge_page_bytes)));
    }
    return Error(ErrorCode::NO_AVAILABLE_HANDLE, "mapping DRAM tier of {} B: {}", options.capacity,
                 std::strerror(error));
  }
  return std::make_unique<Mapping>(static_cast<std::byte*>(base), options.capacity, std::move(*memfd));
}

Result<std::shared_ptr<DramTier>> DramTier::Open(const Options& options) {
  MC_CHECK(options.pin_piece_bytes != 0 && options.pin_piece_bytes % kPage == 0, "pieces of {} B",
           options.pin_piece_bytes);
  if (options.numa_node) MC_TRY(CheckNode(*options.numa_node));
  MC_TRY(CheckHostMemory(options));
  if (options.huge_page_bytes != 0) MC_TRY(CheckHugePages(options));
  std::unique_ptr<Mapping> mapping = MC_TRY(Map(options));
  if (options.numa_node) {
    MC_TRY(BindToNode(mapping->base, options.capacity, *options.numa_node));
    // The reservation is the host's, not the node's: only touching shows that the node has the pages.
    if (options.huge_page_bytes != 0 && PopulateMemfd(mapping->base, mapping->memfd.get(), 0, mapping->bytes) != 0) {
      return TooFewHugePages(options, MC_TRY(GetHugePagePool(options.huge_page_bytes, options.numa_node)));
    }
  }
  Info info{Uuid::Random(), "DRAM", MemoryType::DRAM, options.capacity, options.priority, options.tags};
  std::shared_ptr<DramTier> tier(new DramTier(std::move(info), std::move(mapping), options));
  if (options.prefault || options.pin_with != nullptr) {
    tier->ready_.store(false);
    tier->background_ = std::thread([raw = tier.get()] { raw->RunBackground(); });
  }
  return tier;
}

DramTier::DramTier(Info info, std::unique_ptr<Mapping> mapping, const Options& options)
    : CacheTier(std::move(info)),
      mapping_(std::move(mapping)),
      pin_with_(options.pin_with),
      pin_device_(options.pin_device),
      piece_bytes_(options.pin_piece_bytes),
      allocator_(mapping_->bytes) {}

DramTier::~DramTier() {
  stopping_.store(true);
  if (background_.joinable()) background_.join();
  MC_CHECK(usage() == 0, "DRAM tier destroyed with {} B handed out", usage());
  while (!pins_.empty()) pins_.pop_back();
}

// Piece by piece, so that early pieces serve while late ones are still being touched. Pages that cannot be had end it:
// the host is short of memory, and page-locking would ask for the same ones. Memory that cannot be page-locked is
// copied by another path, and still touched.
void DramTier::RunBackground() {
  bool pinning = pin_with_ != nullptr;
  for (size_t done = 0; done < mapping_->bytes; done += piece_bytes_) {
    const size_t end = done + std::min(piece_bytes_, mapping_->bytes - done);
    if (!Touch(done, end)) break;
    pinning = pinning && Pin(done, end);
  }
  ready_.store(true, std::memory_order_release);
  ready_.notify_all();
}

bool DramTier::Touch(size_t begin, size_t end) {
  for (size_t at = begin; at < end; at += kTouchStep) {
    if (stopping_.load()) return false;
    const int error = PopulateMemfd(mapping_->base, mapping_->memfd.get(), at, std::min(kTouchStep, end - at));
    if (error == 0) continue;
    log::Warn("touching DRAM tier pages at {}: {}", FormatBytes(at), std::strerror(error));
    return false;
  }
  return true;
}

bool DramTier::Pin(size_t begin, size_t end) {
  const size_t size = (end - begin + kPage - 1) / kPage * kPage;  // the mapping has whole pages
  auto pin = pin_with_->RegisterHost(pin_device_, {mapping_->base + begin, size});
  if (pin) {
    pins_.push_back(std::move(*pin));
    pinned_bytes_.fetch_add(end - begin, std::memory_order_release);
    return true;
  }
  if (pin.error().code() == ErrorCode::NOT_IMPLEMENTED) {
    log::Info("DRAM tier is not page-locked for NPU device {}: {}", pin_device_, pin.error().message());
  } else {
    log::Warn("DRAM tier: {} of {} are page-locked for NPU device {}, copies of the rest take the slower path: {}",
              FormatBytes(pinned_bytes()), FormatBytes(mapping_->bytes), pin_device_, pin.error().ToString());
  }
  return false;
}

Result<DataSource> DramTier::Allocate(size_t size) {
  if (size == 0) return Error(ErrorCode::INVALID_PARAMS, "tier DRAM: a block of 0 B");
  std::optional<OffsetAllocator::Range> range;
  {
    std::lock_guard lock(mutex_);
    range = allocator_.Allocate(size);
  }
  if (!range) return Full(size);
  return DataSource{std::make_unique<Buffer>(*this, *range, size), MemoryType::DRAM};
}

size_t DramTier::usage() const {
  std::lock_guard lock(mutex_);
  return allocator_.allocated_bytes();
}

size_t DramTier::largest_hole() const {
  std::lock_guard lock(mutex_);
  return allocator_.largest_free();
}

void DramTier::Release(OffsetAllocator::Range range) {
  std::lock_guard lock(mutex_);
  allocator_.Free(range);
}

}  // namespace mooncake
