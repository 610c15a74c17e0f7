// The measurements of `mooncake_bench tier`.
#include "bench/tier_bench.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include "bench/emulator.h"
#include "client/object_io.h"
#include "common/byte_size.h"
#include "device/npu_runtime.h"
#include "tiered_cache/data_copier.h"
#include "tiered_cache/tiers/ascend_tier.h"
#include "tiered_cache/tiers/dram_tier.h"

namespace mooncake::bench {
namespace {

constexpr size_t kKiB = 1 << 10;
constexpr size_t kMiB = 1 << 20;
constexpr size_t kBlock = 2 * kMiB;  // a KV-cache block
constexpr size_t kSmallBlock = 4 * kKiB;

struct Sizes {
  size_t tier;          // bytes of an NPU tier, a multiple of kBlock
  size_t copy;          // bytes of one large copy
  size_t small_blocks;  // of one batch
  int slab_pairs;       // allocations of one measurement
  int direct_pairs;
};

Sizes SizesFor(bool quick) {
  if (quick) return {64 * kMiB, 16 * kMiB, 64, 1'000, 10};
  return {1024 * kMiB, 256 * kMiB, 512, 200'000, 500};
}

// Makes calls of the emulator fail; "" ends it. False on a real runtime.
bool Inject(const char* rules) {
  const auto inject = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "aclemu_inject"));
  return inject != nullptr && inject(rules) == 0;
}

std::byte* Bytes(const DataSource& dram) {
  return std::get<HostRange>(AsMemoryRange(dram)).data();
}

double Gigabytes(size_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

// Runs work(thread) on so many threads at once; the first error of any.
Result<void> OnThreads(int count, const std::function<Result<void>(int)>& work) {
  std::vector<Result<void>> results(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int t = 1; t < count; ++t) threads.emplace_back([&, t] { results[static_cast<size_t>(t)] = work(t); });
  results[0] = work(0);
  for (auto& thread : threads) thread.join();
  for (auto& result : results) MC_TRY(std::move(result));
  return {};
}

class TierBench {
 public:
  explicit TierBench(const TierBenchOptions& options)
      : options_(options), sizes_(SizesFor(options.quick)), host_(DescribeHost()) {}

  Result<TierBenchResult> Run() {
    host_.iperf3 = "not used";
    MC_TRY(OpenRuntime());
    copier_ = std::make_unique<DataCopier>(MC_TRY(DataCopierBuilder().Build()));
    MC_TRY(Efficiency(Allocation::kSlab, "tier.hbm_efficiency_slab"));
    MC_TRY(Efficiency(Allocation::kDirect, "tier.hbm_efficiency_direct"));
    MC_TRY(AllocationRates());
    MC_TRY(Copies());
    MC_TRY(ThroughHost());
    return TierBenchResult{host_, figures_.Take()};
  }

 private:
  using Allocation = AscendCacheTier::Allocation;

  Result<void> OpenRuntime() {
    runtime_ = MC_TRY(OpenNpuRuntime());
    if (runtime_->DeviceCount() < 2) {
      return Error(ErrorCode::INVALID_PARAMS, "the tier benchmark needs two NPU devices, this process sees {}",
                   runtime_->DeviceCount());
    }
    return {};
  }
  Result<std::shared_ptr<AscendCacheTier>> OpenNpu(int32_t device, size_t capacity, Allocation allocation) {
    return AscendCacheTier::Open({.capacity = capacity, .device_id = device, .allocation = allocation}, runtime_);
  }
  Result<std::shared_ptr<DramTier>> OpenDram(size_t capacity) {
    DramTier::Options options;
    options.capacity = capacity;
    options.pin_with = runtime_;
    auto tier = MC_TRY(DramTier::Open(options));
    tier->WaitReady();
    return tier;
  }

  void Step(const std::string& what, int run) {
    if (options_.on_step) options_.on_step(fmt::format("{}: run {} of {}", what, run + 1, options_.runs));
  }
  void Record(const std::string& name, double value, const char* unit, const char* against = "") {
    figures_.Record(name, value, unit, against);
  }
  // GB/s of a path, and its ratio to the model's rate and to memmove's in the same run.
  void RecordCopy(const std::string& path, size_t bytes, double seconds, const char* model, double memmove_seconds) {
    Record(fmt::format("tier.{}_gbps", path), Gigabytes(bytes) / seconds, "GB/s");
    Record(fmt::format("tier.{}_vs_memmove", path), memmove_seconds / seconds, "ratio", "memmove");
    if (const auto rate = ModelParameter(model)) {
      Record(fmt::format("tier.{}_vs_model", path), Gigabytes(bytes) / seconds / *rate, "ratio", "model");
    }
  }

  // Part of the memory the device spends on a full tier that holds data.
  Result<void> Efficiency(Allocation allocation, const char* name) {
    MC_TRY(runtime_->OpenDevice(0));
    for (int run = 0; run < options_.runs; ++run) {
      Step(name, run);
      const size_t free_before = MC_TRY(runtime_->GetMemoryInfo(0)).free_bytes;
      const auto tier = MC_TRY(OpenNpu(0, sizes_.tier, allocation));
      std::vector<DataSource> blocks;
      for (;;) {
        auto block = tier->Allocate(kBlock);
        if (!block) break;
        blocks.push_back(std::move(*block));
      }
      const size_t spent = free_before - MC_TRY(runtime_->GetMemoryInfo(0)).free_bytes;
      const size_t held = blocks.size() * kBlock;
      if (spent == 0) return Error(ErrorCode::INTERNAL_ERROR, "the device's free memory did not move");
      Record(name, static_cast<double>(held) / static_cast<double>(std::max(spent, sizes_.tier)), "ratio");
    }
    return {};
  }

  // Allocate and free, one block of 2 MiB after the other.
  static Result<void> Churn(CacheTier& tier, size_t size, int pairs) {
    for (int i = 0; i < pairs; ++i) MC_TRY(tier.Allocate(size));
    return {};
  }

  Result<void> AllocationRates() {
    const auto slab = MC_TRY(OpenNpu(0, sizes_.tier / 4, Allocation::kSlab));
    const auto direct = MC_TRY(OpenNpu(0, sizes_.tier / 4, Allocation::kDirect));
    const auto dram = MC_TRY(OpenDram(sizes_.tier / 4));
    for (int run = 0; run < options_.runs; ++run) {
      Step("allocate and free", run);
      const auto rate = [&](CacheTier& tier, size_t size, int pairs, int threads) -> Result<double> {
        const double seconds =
            MC_TRY(Timed([&] { return OnThreads(threads, [&](int) { return Churn(tier, size, pairs / threads); }); }));
        return pairs / seconds;
      };
      const double of_slab = MC_TRY(rate(*slab, kBlock, sizes_.slab_pairs, 1));
      const double of_direct = MC_TRY(rate(*direct, kBlock, sizes_.direct_pairs, 1));
      Record("tier.alloc_slab_kops", of_slab / 1e3, "kops");
      Record("tier.alloc_direct_kops", of_direct / 1e3, "kops");
      Record("tier.alloc_slab_vs_direct", of_slab / of_direct, "ratio", "direct");
      const double by_threads = MC_TRY(rate(*slab, kBlock, sizes_.slab_pairs, options_.threads));
      Record("tier.alloc_slab_threads_kops", by_threads / 1e3, "kops");
      Record("tier.dram_alloc_mops", MC_TRY(rate(*dram, kSmallBlock, sizes_.slab_pairs, 1)) / 1e6, "Mops");
    }
    return {};
  }

  Result<void> Copies() {
    const auto npu = MC_TRY(OpenNpu(0, 2 * sizes_.copy + 16 * kMiB, Allocation::kSlab));
    const auto dram = MC_TRY(OpenDram(3 * sizes_.copy));
    const DataSource to_npu = MC_TRY(npu->Allocate(sizes_.copy));
    const DataSource from_npu = MC_TRY(npu->Allocate(sizes_.copy));
    const DataSource in_dram = MC_TRY(dram->Allocate(sizes_.copy));
    const DataSource out_dram = MC_TRY(dram->Allocate(sizes_.copy));
    std::vector<std::byte> pageable(sizes_.copy, std::byte{7});
    const DataSource user = DataSource::Host(pageable.data(), pageable.size());
    MC_TRY(copier_->Copy(user, in_dram));
    MC_TRY(copier_->Copy(in_dram, from_npu));
    for (int run = 0; run < options_.runs; ++run) {
      Step("copies of " + FormatBytes(sizes_.copy), run);
      const double memmove_seconds = Seconds([&] { std::memmove(Bytes(out_dram), Bytes(in_dram), sizes_.copy); });
      Record("tier.memmove_gbps", Gigabytes(sizes_.copy) / memmove_seconds, "GB/s");
      const auto measure = [&](const std::string& path, const DataSource& source, const DataSource& target,
                               const char* model) -> Result<void> {
        const double seconds = MC_TRY(Timed([&] { return copier_->Copy(source, target); }));
        RecordCopy(path, sizes_.copy, seconds, model, memmove_seconds);
        return {};
      };
      MC_TRY(measure("copy_h2d", in_dram, to_npu, "h2d_gbps"));
      MC_TRY(measure("copy_d2h", from_npu, out_dram, "d2h_gbps"));
      MC_TRY(measure("copy_h2d_pageable", user, to_npu, "h2d_gbps"));
      MC_TRY(measure("copy_d2d", from_npu, to_npu, "d2d_gbps"));
      MC_TRY(measure("copy_dram", in_dram, out_dram, "no model"));
      MC_TRY(Duplex(in_dram, to_npu, from_npu, out_dram));
      MC_TRY(InParts(in_dram, to_npu, memmove_seconds));
    }
    return SmallBlocks(*npu, *dram);
  }

  // Both directions of one device at once; the slower one counts.
  Result<void> Duplex(const DataSource& in_dram, const DataSource& to_npu, const DataSource& from_npu,
                      const DataSource& out_dram) {
    double seconds[2] = {};
    const auto one_way = [&](int direction) -> Result<void> {
      const auto copy = [&] {
        return direction == 0 ? copier_->Copy(in_dram, to_npu) : copier_->Copy(from_npu, out_dram);
      };
      seconds[direction] = MC_TRY(Timed(copy));
      return {};
    };
    MC_TRY(OnThreads(2, one_way));
    Record("tier.copy_duplex_h2d_gbps", Gigabytes(sizes_.copy) / seconds[0], "GB/s");
    Record("tier.copy_duplex_d2h_gbps", Gigabytes(sizes_.copy) / seconds[1], "GB/s");
    const auto h2d = ModelParameter("h2d_gbps");
    const auto d2h = ModelParameter("d2h_gbps");
    if (h2d && d2h) {
      Record("tier.copy_duplex_vs_model",
             Gigabytes(sizes_.copy) * std::min(1 / seconds[0] / *h2d, 1 / seconds[1] / *d2h), "ratio", "model");
    }
    return {};
  }

  // The same bytes in blocks of 2 MiB by several threads.
  Result<void> InParts(const DataSource& source, const DataSource& target, double memmove_seconds) {
    const auto part = [&](int thread) -> Result<void> {
      const size_t step = kBlock * static_cast<size_t>(options_.threads);
      for (size_t at = kBlock * static_cast<size_t>(thread); at + kBlock <= sizes_.copy; at += step) {
        const DataSource from = MC_TRY(Slice(source, at, kBlock));
        const DataSource to = MC_TRY(Slice(target, at, kBlock));
        MC_TRY(copier_->Copy(from, to));
      }
      return {};
    };
    const double seconds = MC_TRY(Timed([&] { return OnThreads(options_.threads, part); }));
    RecordCopy("copy_h2d_2m_threads", sizes_.copy, seconds, "h2d_gbps", memmove_seconds);
    return {};
  }

  // Many small blocks in one batch, beside one after the other.
  Result<void> SmallBlocks(CacheTier& npu, CacheTier& dram) {
    std::vector<DataSource> sources;
    std::vector<DataSource> targets;
    std::vector<RangeCopy> copies;
    for (size_t i = 0; i < sizes_.small_blocks; ++i) {
      sources.push_back(MC_TRY(dram.Allocate(kSmallBlock)));
      targets.push_back(MC_TRY(npu.Allocate(kSmallBlock)));
      copies.push_back({.target = AsMemoryRange(targets.back()), .source = AsMemoryRange(sources.back())});
    }
    for (int run = 0; run < options_.runs; ++run) {
      Step("batches of 4 KiB", run);
      const auto one_by_one = [&]() -> Result<void> {
        for (size_t i = 0; i < copies.size(); ++i) MC_TRY(copier_->Copy(sources[i], targets[i]));
        return {};
      };
      const double single = MC_TRY(Timed(one_by_one));
      const double batch = Seconds([&] { CopyRanges(copies); });
      for (const RangeCopy& copy : copies) {
        if (!copy.result) return std::unexpected(copy.result.error());
      }
      Record("tier.copy_batch_4k_kops", static_cast<double>(copies.size()) / 1e3 / batch, "kops");
      Record("tier.copy_batch_4k_vs_single", single / batch, "ratio", "one by one");
    }
    return {};
  }

  // From one device to another: directly, then with peer access refused, through host memory.
  Result<void> ThroughHost() {
    for (const bool peers : {true, false}) {
      runtime_.reset();  // whether devices reach each other is asked once per runtime
      if (!peers && !Inject("aclrtDeviceCanAccessPeer@every:1=207000")) break;
      auto ended = NpuToNpu(peers ? "npu_to_npu_peer" : "npu_to_npu", peers);
      if (!peers) Inject("");
      MC_TRY(std::move(ended));
    }
    return {};
  }

  Result<void> NpuToNpu(const std::string& path, bool peers) {
    MC_TRY(OpenRuntime());
    const auto first = MC_TRY(OpenNpu(0, sizes_.copy, Allocation::kSlab));
    const auto second = MC_TRY(OpenNpu(1, sizes_.copy, Allocation::kSlab));
    const DataSource source = MC_TRY(first->Allocate(sizes_.copy));
    const DataSource target = MC_TRY(second->Allocate(sizes_.copy));
    const auto slower = [&]() -> std::optional<double> {
      if (peers) return ModelParameter("peer_gbps");
      const auto d2h = ModelParameter("d2h_gbps");
      const auto h2d = ModelParameter("h2d_gbps");
      return d2h && h2d ? std::optional(std::min(*d2h, *h2d)) : std::nullopt;
    }();
    for (int run = 0; run < options_.runs; ++run) {
      Step(peers ? "NPU to NPU" : "NPU to NPU through the host", run);
      const double seconds = MC_TRY(Timed([&] { return copier_->Copy(source, target); }));
      Record(fmt::format("tier.{}_gbps", path), Gigabytes(sizes_.copy) / seconds, "GB/s");
      if (slower) {
        Record(fmt::format("tier.{}_vs_model", path), Gigabytes(sizes_.copy) / seconds / *slower, "ratio", "model");
      }
    }
    return {};
  }

  const TierBenchOptions& options_;
  const Sizes sizes_;
  Host host_;
  std::shared_ptr<NpuRuntime> runtime_;
  std::unique_ptr<DataCopier> copier_;
  Figures figures_;
};

}  // namespace

Result<TierBenchResult> RunTierBench(const TierBenchOptions& options) {
  return TierBench(options).Run();
}

}  // namespace mooncake::bench
