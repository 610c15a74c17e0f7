// One process's worth of the ascend transport on the emulated NPUs of one node, and blocks of their memory; for tests.
#pragma once

#include <cstring>
#include <memory>

#include "device/acl/test_emulator_probe.h"
#include "device/npu_runtime.h"
#include "device/test_pattern.h"
#include "transfer_engine/transport/ascend/ascend_direct_transport.h"
#include "transfer_engine/transport/local/test_context.h"

namespace mooncake {

// The runtime, on devices that this process and those it starts share.
inline std::shared_ptr<NpuRuntime> RuntimeOfNode() {
  ShareEmulatedDevices();
  auto runtime = OpenNpuRuntime();
  EXPECT_TRUE(runtime) << runtime.error().ToString();
  return *std::move(runtime);
}

// What this process has asked of the runtime since this was made.
class IpcCalls {
 public:
  uint64_t exports() const { return EmulatorProbe::Calls("aclrtIpcMemGetExportKey") - exports_; }
  uint64_t imports() const { return EmulatorProbe::Calls("aclrtIpcMemImportByKey") - imports_; }
  uint64_t closes() const { return EmulatorProbe::Calls("aclrtIpcMemClose") - closes_; }
  uint64_t violations() const { return EmulatorProbe::Stats().violations - violations_; }

 private:
  const uint64_t exports_ = EmulatorProbe::Calls("aclrtIpcMemGetExportKey");
  const uint64_t imports_ = EmulatorProbe::Calls("aclrtIpcMemImportByKey");
  const uint64_t closes_ = EmulatorProbe::Calls("aclrtIpcMemClose");
  const uint64_t violations_ = EmulatorProbe::Stats().violations;
};

// Dies after what it is registered with.
struct NpuBlock {
  NpuBlock(NpuRuntime& with, int32_t device, size_t bytes, unsigned seed) : runtime(with) {
    EXPECT_TRUE(runtime.OpenDevice(device));
    range = NpuRange{*runtime.Allocate(device, bytes), bytes, &runtime};
    Fill(seed);
  }
  ~NpuBlock() { EXPECT_TRUE(runtime.Free(range.at)); }
  NpuBlock(const NpuBlock&) = delete;
  NpuBlock& operator=(const NpuBlock&) = delete;
  void Fill(unsigned seed) { Write(Pattern(range.size, seed)); }
  void Write(const Bytes& bytes) { EXPECT_TRUE(CopyFromHost(range, bytes)); }
  Bytes Read() const {
    Bytes bytes(range.size);
    EXPECT_TRUE(CopyToHost(bytes, range));
    return bytes;
  }
  bool Holds(const Bytes& expected) const {
    const Bytes bytes = Read();  // compared at once, as they are many
    return bytes.size() == expected.size() && std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0;
  }
  MemoryRange Part(size_t offset, size_t length) const { return SubRange(range, offset, length); }
  uint64_t address() const { return static_cast<uint64_t>(range.at.device_ptr); }

  NpuRuntime& runtime;
  NpuRange range;
};

struct NpuNode {
  explicit NpuNode(std::shared_ptr<NpuRuntime> runtime, AscendDirectTransport::Limits limits = {}) {
    auto opened = AscendDirectTransport::Open(context.Context(), std::move(runtime), limits);
    EXPECT_TRUE(opened) << opened.error().ToString();
    transport = std::move(*opened);
  }
  std::shared_ptr<Region> Register(const NpuRange& range, RegionAccess access = RegionAccess::kOpen) {
    RegionOptions options;
    options.device_id = range.at.device_id;
    options.location = "npu";
    options.access = access;
    // Only the address is looked at.
    return context.Register(
        *transport, HostRange(reinterpret_cast<std::byte*>(static_cast<uintptr_t>(range.at.device_ptr)), range.size),
        options);
  }
  std::shared_ptr<Region> Register(const NpuBlock& block) { return Register(block.range); }
  SegmentPtr Describe() const { return context.Describe(*transport); }

  TestContext context;
  std::unique_ptr<AscendDirectTransport> transport;
};

}  // namespace mooncake
