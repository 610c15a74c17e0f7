// Choice of copy paths, and the copy between host buffers.
#include "tiered_cache/data_copier.h"

#include <cstring>

namespace mooncake {
namespace {

constexpr auto kDram = static_cast<size_t>(MemoryType::DRAM);

Result<void> CopyDramToDram(const DataSource& source, const DataSource& target) {
  const HostBuffer* from = MC_TRY(HostSide(source, "source"));
  const HostBuffer* to = MC_TRY(HostSide(target, "target"));
  std::memcpy(to->data(), from->data(), from->size());
  return {};
}

}  // namespace

Result<const HostBuffer*> HostSide(const DataSource& data, const char* role) {
  const auto* host = dynamic_cast<const HostBuffer*>(data.buffer.get());
  if (host == nullptr || host->data() == nullptr) {
    return Error(ErrorCode::INVALID_PARAMS, "{} is tagged {} but its buffer is not host memory", role,
                 MemoryTypeName(data.type));
  }
  return host;
}

CopierRegistry& CopierRegistry::Instance() {
  static CopierRegistry registry;
  return registry;
}

void CopierRegistry::RegisterMemoryType(MemoryType type, CopyFunction to_dram, CopyFunction from_dram,
                                        CopyFunction within) {
  within_[static_cast<size_t>(type)] = std::move(within);
  to_dram_[static_cast<size_t>(type)] = std::move(to_dram);
  from_dram_[static_cast<size_t>(type)] = std::move(from_dram);
}

DataCopierBuilder::DataCopierBuilder() {
  paths_[kDram][kDram] = CopyDramToDram;
  const CopierRegistry& registry = CopierRegistry::Instance();
  for (size_t type = 0; type < kMemoryTypeCount; ++type) {
    if (type == kDram) continue;
    paths_[type][kDram] = registry.ToDram(static_cast<MemoryType>(type));
    paths_[type][type] = registry.Within(static_cast<MemoryType>(type));
    paths_[kDram][type] = registry.FromDram(static_cast<MemoryType>(type));
  }
}

DataCopierBuilder& DataCopierBuilder::AddDirectPath(MemoryType source, MemoryType target, CopyFunction copy) {
  paths_[static_cast<size_t>(source)][static_cast<size_t>(target)] = std::move(copy);
  return *this;
}

Result<DataCopier> DataCopierBuilder::Build() const {
  for (size_t type = 0; type < kMemoryTypeCount; ++type) {
    const bool to_dram = static_cast<bool>(paths_[type][kDram]);
    const bool from_dram = static_cast<bool>(paths_[kDram][type]);
    if (to_dram != from_dram) {
      return Error(ErrorCode::INTERNAL_ERROR, "memory type {} has no copier {} DRAM",
                   MemoryTypeName(static_cast<MemoryType>(type)), to_dram ? "from" : "to");
    }
  }
  return DataCopier(paths_);
}

bool DataCopier::Supports(MemoryType type) const {
  return static_cast<bool>(Path(type, MemoryType::DRAM)) && static_cast<bool>(Path(MemoryType::DRAM, type));
}

Result<void> DataCopier::Copy(const DataSource& source, const DataSource& target) const {
  if (source.size() == 0) return {};
  if (target.buffer == nullptr)
    return Error(ErrorCode::INVALID_PARAMS, "copy of {} B has no target buffer", source.size());
  if (target.size() < source.size()) {
    return Error(ErrorCode::BUFFER_OVERFLOW, "copy of {} B into a buffer of {} B", source.size(), target.size());
  }
  if (const CopyFunction& direct = Path(source.type, target.type)) return direct(source, target);
  if (source.type != MemoryType::DRAM && target.type != MemoryType::DRAM) return CopyThroughDram(source, target);
  return Error(ErrorCode::DATA_COPY_FAILED, "no copier from {} to {}", MemoryTypeName(source.type),
               MemoryTypeName(target.type));
}

Result<void> DataCopier::CopyThroughDram(const DataSource& source, const DataSource& target) const {
  const CopyFunction& first = Path(source.type, MemoryType::DRAM);
  const CopyFunction& second = Path(MemoryType::DRAM, target.type);
  if (!first || !second) {
    return Error(ErrorCode::DATA_COPY_FAILED, "no copier from {} to {}, nor through DRAM", MemoryTypeName(source.type),
                 MemoryTypeName(target.type));
  }
  const DataSource stop{MC_TRY(TempDRAMBuffer::Create(source.size())), MemoryType::DRAM};
  MC_TRY(first(source, stop));
  return second(stop, target);
}

}  // namespace mooncake
