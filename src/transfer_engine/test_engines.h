// Engines over fake transports for tests: each stands for a process of its own.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transfer_engine/engine_core.h"
#include "transfer_engine/test_fake_transport.h"

namespace mooncake {

inline Deadline Soon() {
  return Deadline::After(std::chrono::seconds(20));
}

// Text by key, with a hook before each call.
class FakeMetadata final : public MetadataStore {
 public:
  struct Shared {
    std::mutex mutex;
    std::map<std::string, std::string> entries;
    std::function<Result<void>(std::string_view call, const std::string& key)> before;
    std::atomic<int> puts{0};
    std::atomic<int> gets{0};
  };
  explicit FakeMetadata(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  Result<std::optional<std::string>> Get(const std::string& key, Deadline) override {
    ++shared_->gets;
    if (shared_->before) MC_TRY(shared_->before("get", key));
    std::lock_guard lock(shared_->mutex);
    const auto found = shared_->entries.find(key);
    if (found == shared_->entries.end()) return std::nullopt;
    return found->second;
  }
  Result<void> Put(const std::string& key, const std::string& value, Deadline) override {
    ++shared_->puts;
    if (shared_->before) MC_TRY(shared_->before("put", key));
    std::lock_guard lock(shared_->mutex);
    shared_->entries[key] = value;
    return {};
  }
  Result<void> Remove(const std::string& key, Deadline) override {
    std::lock_guard lock(shared_->mutex);
    shared_->entries.erase(key);
    return {};
  }

 private:
  const std::shared_ptr<Shared> shared_;
};

// An engine and its fake transports, which belong to the engine.
struct FakeEngine {
  std::unique_ptr<internal::EngineCore> core;
  std::vector<FakeTransport*> wires;

  FakeTransport& wire() const { return *wires.front(); }
  internal::EngineCore* operator->() const { return core.get(); }
};

struct FakeEngineSetup {
  TransferEngineOptions options{};
  std::shared_ptr<FakeMetadata::Shared> metadata{};
  std::function<std::shared_ptr<NpuRuntime>()> npu = [] { return std::shared_ptr<NpuRuntime>(); };
  std::vector<FakeTransport::Options> wires = {{}};
};

inline Result<FakeEngine> TryOpenFake(FakeNetwork& network, FakeEngineSetup setup = {}) {
  FakeEngine engine;
  internal::EngineParts parts;
  parts.open_transports = [&](const TransportContext& context) -> Result<std::vector<std::unique_ptr<Transport>>> {
    std::vector<std::unique_ptr<Transport>> transports;
    for (const FakeTransport::Options& options : setup.wires) {
      auto wire = std::make_unique<FakeTransport>(network, context.regions, context.generation, options);
      engine.wires.push_back(wire.get());
      transports.push_back(std::move(wire));
    }
    return transports;
  };
  parts.open_metadata = [metadata = setup.metadata](const std::string&) -> Result<std::unique_ptr<MetadataStore>> {
    return std::make_unique<FakeMetadata>(metadata);
  };
  parts.npu = setup.npu;
  if (setup.metadata != nullptr) setup.options.metadata = "fake://";
  engine.core = MC_TRY(internal::EngineCore::Open(setup.options, std::nullopt, std::move(parts)));
  return engine;
}

inline FakeEngine OpenFake(FakeNetwork& network, FakeEngineSetup setup = {}) {
  auto engine = TryOpenFake(network, std::move(setup));
  EXPECT_TRUE(engine) << engine.error().ToString();
  return std::move(*engine);
}

inline Result<void> Register(FakeEngine& engine, std::span<std::byte> memory, RegionOptions options = {}) {
  return engine->keeper().Register({&memory, 1}, options);
}

inline TransferRequest Write(std::span<std::byte> from, SegmentId target, const void* to) {
  return {TransferOpcode::kWrite, from.data(), target, reinterpret_cast<uintptr_t>(to), from.size()};
}
inline TransferRequest Read(std::span<std::byte> into, SegmentId target, const void* from) {
  return {TransferOpcode::kRead, into.data(), target, reinterpret_cast<uintptr_t>(from), into.size()};
}

inline std::vector<std::byte> Pattern(size_t size, int seed = 1) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + static_cast<size_t>(seed) * 7 + i / 251);
  return bytes;
}

}  // namespace mooncake
