// Sums of host and device memory, and the copy that checks them.
#include "tiered_cache/block_sum.h"

#include <algorithm>

#include "common/content_sum.h"
#include "tiered_cache/metadata_entry.h"

namespace mooncake {

Result<uint64_t> ComputeSum(const DataSource& data, const DataCopier& copier) {
  if (data.size() == 0) return SumOf({});
  if (data.type == MemoryType::DRAM) {
    const HostBuffer* host = MC_TRY(HostSide(data, "block"));
    return SumOf({host->data(), host->size()});
  }
  const auto staging = MC_TRY(TempDRAMBuffer::Create(std::min(data.size(), kSumChunkBytes)));
  SumBuilder builder(data.size());
  for (size_t i = 0; i < builder.chunk_count(); ++i) {
    const size_t size = builder.ChunkSize(i);
    const DataSource chunk = MC_TRY(Slice(data, i * kSumChunkBytes, size));
    MC_TRY(copier.Copy(chunk, DataSource::Host(staging->data(), size)));
    builder.Add(i, {staging->data(), size});
  }
  return builder.Sum();
}

Result<uint64_t> EnsureSum(const AllocationEntry& block, const DataCopier& copier) {
  if (const auto kept = block.sum.value()) return *kept;
  const uint64_t made = MC_TRY(ComputeSum(block.data, copier));
  block.sum.Confirm(made);
  return block.sum.value().value_or(made);  // another thread may have been first
}

Result<bool> CopyBlock(const AllocationEntry& source, const AllocationEntry& target, const DataCopier& copier) {
  // The copy is what gets checked, where the processor can read it: that covers the copying as well. Reading back from
  // a device would cost as much as the copy, so there it is the source; the copy is checked when it leaves in turn.
  const bool check_copy = target.data.type == MemoryType::DRAM;
  const bool first_sum = source.data.type == MemoryType::DRAM && !source.sum.value();
  if (!check_copy || first_sum) {
    if (!source.sum.Confirm(MC_TRY(ComputeSum(source.data, copier)))) return false;
  }
  MC_TRY(copier.Copy(source.data, target.data));
  if (check_copy && !source.sum.Confirm(MC_TRY(ComputeSum(target.data, copier)))) return false;
  if (const auto sum = source.sum.value()) target.sum.Confirm(*sum);
  return true;
}

}  // namespace mooncake
