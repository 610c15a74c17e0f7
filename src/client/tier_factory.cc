// Opens tiers by their configured type.
#include "client/tier_factory.h"

#include <algorithm>
#include <map>
#include <optional>

#include "common/byte_size.h"
#include "tiered_cache/tiers/ascend_tier.h"
#include "tiered_cache/tiers/dram_tier.h"
#include "tiered_cache/tiers/huge_pages.h"

namespace mooncake {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kDevicePage = size_t{2} << 20;

class TierOpener {
 public:
  Result<std::shared_ptr<CacheTier>> Open(TierConfig tier) {
    if (tier.type == kAscendTierType) return OpenAscend(std::move(tier));
    return OpenDram(std::move(tier));
  }
  std::shared_ptr<NpuRuntime> npu_runtime() const { return npu_runtime_; }

 private:
  Result<std::shared_ptr<CacheTier>> OpenAscend(TierConfig tier) {
    if (npu_runtime_ == nullptr) {
      npu_runtime_ = MC_TRY(OpenNpuRuntime());
      pin_device_ = tier.device_id;
    }
    size_t& promised = promised_on_device_[tier.device_id];
    size_t& taken = taken_on_device_[tier.device_id];
    if (tier.capacity_percent != 0) {
      MC_TRY(npu_runtime_->OpenDevice(tier.device_id));
      const auto memory = MC_TRY(npu_runtime_->GetMemoryInfo(tier.device_id));
      const size_t free = memory.free_bytes - std::min(promised, memory.free_bytes);
      tier.capacity_bytes = MC_TRY(ShareOf(tier, free, kDevicePage, fmt::format("NPU device {}", tier.device_id)));
    }
    using Allocation = AscendCacheTier::Allocation;
    std::shared_ptr<CacheTier> opened =
        MC_TRY(AscendCacheTier::Open({.capacity = tier.capacity_bytes,
                                      .priority = tier.priority,
                                      .tags = tier.tags,
                                      .device_id = tier.device_id,
                                      .promised = promised,
                                      .taken = taken,
                                      .allocation = tier.direct_allocation ? Allocation::kDirect : Allocation::kSlab,
                                      .slab_size = tier.slab_bytes},
                                     npu_runtime_));
    (tier.direct_allocation ? promised : taken) += tier.capacity_bytes;
    return opened;
  }

  Result<std::shared_ptr<CacheTier>> OpenDram(TierConfig tier) {
    // Asked before the first of them: those opened are being touched right now, and would count twice.
    if (!available_at_start_) available_at_start_ = AvailableHostMemory();
    const size_t huge_page = tier.hugepage_bytes.value_or(0);
    if (tier.capacity_percent != 0 && huge_page != 0) {
      const auto pool = MC_TRY(GetHugePagePool(huge_page, tier.numa_node));
      const std::string where = fmt::format("huge pages of {}", FormatBytes(huge_page));
      tier.capacity_bytes = MC_TRY(ShareOf(tier, pool.free * huge_page, huge_page, where));
    } else if (tier.capacity_percent != 0) {
      const size_t available = MC_TRY(*available_at_start_);
      const size_t free = available - std::min(promised_ordinary_, available);
      tier.capacity_bytes = MC_TRY(ShareOf(tier, free, kPage, "the host's memory"));
    }
    DramTier::Options options;
    options.capacity = tier.capacity_bytes;
    options.priority = tier.priority;
    options.tags = tier.tags;
    options.numa_node = tier.numa_node;
    options.promised = promised_on_host_;
    options.huge_page_bytes = huge_page;
    options.pin_with = npu_runtime_;
    options.pin_device = pin_device_;
    std::shared_ptr<CacheTier> opened = MC_TRY(DramTier::Open(options));
    promised_on_host_ += tier.capacity_bytes;
    if (huge_page == 0) promised_ordinary_ += tier.capacity_bytes;
    return opened;
  }

  // In whole pages.
  static Result<size_t> ShareOf(const TierConfig& tier, size_t free, size_t page, const std::string& where) {
    const auto share = static_cast<size_t>(static_cast<double>(free) * (tier.capacity_percent / 100));
    const size_t bytes = std::min(share, free) / page * page;
    if (bytes == 0) {
      return Error(ErrorCode::INVALID_PARAMS, "capacity {}% of {}: {} free there make no page of {}",
                   tier.capacity_percent, where, FormatBytes(free), FormatBytes(page));
    }
    return bytes;
  }

  std::shared_ptr<NpuRuntime> npu_runtime_;
  int32_t pin_device_ = 0;  // of the first NPU tier
  std::map<int32_t, size_t> promised_on_device_;
  std::map<int32_t, size_t> taken_on_device_;
  size_t promised_on_host_ = 0;
  size_t promised_ordinary_ = 0;  // of that, what is not on huge pages
  std::optional<Result<size_t>> available_at_start_;
};

}  // namespace

TierSupport BuiltTierSupport() {
  TierSupport support{.ascend_npu = NpuSupportBuilt(), .ascend_npu_why_not = {}};
  if (!support.ascend_npu) {
    support.ascend_npu_why_not =
        fmt::format("this build has no NPU support; configure it with -D{}=ON", kNpuBuildOption);
  }
  return support;
}

Result<OpenedTiers> OpenTiers(const TieredBackendConfig& config) {
  OpenedTiers opened;
  opened.tiers.resize(config.tiers.size());
  TierOpener opener;
  for (const bool npu : {true, false}) {
    for (size_t i = 0; i < config.tiers.size(); ++i) {
      if ((config.tiers[i].type == kAscendTierType) != npu) continue;
      auto tier = opener.Open(config.tiers[i]);
      if (!tier) return Annotate(tier.error(), config.Where(config.tiers[i]));
      opened.tiers[i] = std::move(*tier);
    }
  }
  opened.npu_runtime = opener.npu_runtime();
  return opened;
}

}  // namespace mooncake
