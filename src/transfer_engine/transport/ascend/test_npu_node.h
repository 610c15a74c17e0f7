// One process's worth of the ascend transport, with blocks of NPU memory; for its tests.
#pragma once

#include <memory>

#include "device/npu_runtime.h"
#include "device/test_pattern.h"
#include "transfer_engine/transport/ascend/ascend_direct_transport.h"
#include "transfer_engine/transport/local/test_context.h"

namespace mooncake {

// A block of NPU device 0.
struct NpuBlock {
  NpuBlock(NpuRuntime& with, size_t bytes, unsigned seed) : runtime(with) {
    EXPECT_TRUE(runtime.OpenDevice(0));
    range = NpuRange{*runtime.Allocate(0, bytes), bytes, &runtime};
    Fill(seed);
  }
  ~NpuBlock() { EXPECT_TRUE(runtime.Free(range.at)); }
  NpuBlock(const NpuBlock&) = delete;
  NpuBlock& operator=(const NpuBlock&) = delete;
  void Fill(unsigned seed) { EXPECT_TRUE(CopyFromHost(range, Pattern(range.size, seed))); }
  Bytes Read() const {
    Bytes bytes(range.size);
    EXPECT_TRUE(CopyToHost(bytes, range));
    return bytes;
  }
  uint64_t address() const { return static_cast<uint64_t>(range.at.device_ptr); }

  NpuRuntime& runtime;
  NpuRange range;
};

struct NpuNode {
  explicit NpuNode(std::shared_ptr<NpuRuntime> with, AscendDirectTransport::Limits limits = {})
      : runtime(std::move(with)) {
    auto opened = AscendDirectTransport::Open(context.Context(), [this] { return runtime; }, limits);
    EXPECT_TRUE(opened) << opened.error().ToString();
    transport = std::move(*opened);
  }
  std::shared_ptr<Region> Register(const NpuBlock& block, size_t offset, size_t length) {
    RegionOptions options;
    options.device_id = 0;
    options.location = "npu:0";
    // Only the address is looked at.
    return context.Register(*transport, HostRange(reinterpret_cast<std::byte*>(block.address() + offset), length),
                            options);
  }
  std::shared_ptr<Region> Register(const NpuBlock& block) { return Register(block, 0, block.range.size); }
  SegmentPtr Describe() const { return context.Describe(*transport); }

  std::shared_ptr<NpuRuntime> runtime;
  TestContext context;
  std::unique_ptr<AscendDirectTransport> transport;
};

}  // namespace mooncake
