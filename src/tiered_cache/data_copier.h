// Copies between kinds of memory: a registry of functions, and the object that picks the right one.
#pragma once

#include <array>
#include <functional>

#include "common/status.h"
#include "tiered_cache/buffer.h"

namespace mooncake {

// Copies source.size() bytes to the start of target. Called with both buffers present, source not empty and no larger
// than target; checks the buffers' dynamic types itself.
using CopyFunction = std::function<Result<void>(const DataSource& source, const DataSource& target)>;

// Host side of a copy, or INVALID_PARAMS saying which side (`role`) is not what its tag claims.
Result<const HostBuffer*> HostSide(const DataSource& data, const char* role);

inline constexpr size_t kMemoryTypeCount = 4;

// Copy functions announced by tier kinds before main. Filled by static CopierRegistrar objects only, hence without a
// lock.
class CopierRegistry {
 public:
  static CopierRegistry& Instance();
  // A kind registered twice: the last one counts. `within` copies from that kind to itself and may be left out.
  void RegisterMemoryType(MemoryType type, CopyFunction to_dram, CopyFunction from_dram, CopyFunction within);
  const CopyFunction& Within(MemoryType type) const { return within_[static_cast<size_t>(type)]; }
  const CopyFunction& ToDram(MemoryType type) const { return to_dram_[static_cast<size_t>(type)]; }
  const CopyFunction& FromDram(MemoryType type) const { return from_dram_[static_cast<size_t>(type)]; }

 private:
  std::array<CopyFunction, kMemoryTypeCount> within_;
  std::array<CopyFunction, kMemoryTypeCount> to_dram_;
  std::array<CopyFunction, kMemoryTypeCount> from_dram_;
};

// A static object of this type in a tier's source file announces that kind of memory.
class CopierRegistrar {
 public:
  CopierRegistrar(MemoryType type, CopyFunction to_dram, CopyFunction from_dram, CopyFunction within = nullptr) {
    CopierRegistry::Instance().RegisterMemoryType(type, std::move(to_dram), std::move(from_dram), std::move(within));
  }
};

// Immutable once built; any thread.
class DataCopier {
 public:
  // Copies source.size() bytes. Order of choice: the function for exactly this pair; else two hops through a temporary
  // host buffer; else DATA_COPY_FAILED. A source of 0 bytes copies nothing. BUFFER_OVERFLOW when the target is smaller,
  // INVALID_PARAMS for a missing buffer or one that is not what its tag says.
  Result<void> Copy(const DataSource& source, const DataSource& target) const;
  // True when data of this kind can be brought to DRAM and back.
  bool Supports(MemoryType type) const;

 private:
  friend class DataCopierBuilder;
  using Table = std::array<std::array<CopyFunction, kMemoryTypeCount>, kMemoryTypeCount>;
  explicit DataCopier(Table paths) : paths_(std::move(paths)) {}
  const CopyFunction& Path(MemoryType source, MemoryType target) const {
    return paths_[static_cast<size_t>(source)][static_cast<size_t>(target)];
  }
  Result<void> CopyThroughDram(const DataSource& source, const DataSource& target) const;

  Table paths_;
};

// Starts with everything registered, and DRAM to DRAM.
class DataCopierBuilder {
 public:
  DataCopierBuilder();
  DataCopierBuilder& AddDirectPath(MemoryType source, MemoryType target, CopyFunction copy);
  // INTERNAL_ERROR when a registered kind of memory lacks one of its two directions.
  Result<DataCopier> Build() const;

 private:
  DataCopier::Table paths_;
};

}  // namespace mooncake
