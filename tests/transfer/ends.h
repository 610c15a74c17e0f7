// Two ends of a transfer for the suites of this folder: an engine of this process and one at the far end, on one wire.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "device/memory_range.h"
#include "device/npu_runtime.h"
#include "transfer/far_end.h"
#include "transfer_engine/transfer_engine.h"

namespace mooncake::transfer_test {

// Environment of engines that open meanwhile.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~ScopedVariable() { unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
};

// Registered memory at the far end.
class FarMemory {
 public:
  FarMemory(FarEnd& end, uint64_t address, size_t length) : end_(&end), address_(address), length_(length) {}
  uint64_t address() const { return address_; }
  size_t length() const { return length_; }
  void Fill(uint64_t seed) const { Fill(seed, 0, length_); }
  void Fill(uint64_t seed, size_t offset, size_t length) const;
  // That these bytes are those of the pattern at the same offsets.
  void Expect(uint64_t seed) const { Expect(seed, 0, length_); }
  void Expect(uint64_t seed, size_t offset, size_t length) const;
  uint64_t Hash() const;

 private:
  std::string Range(size_t offset, size_t length) const;

  FarEnd* end_;
  uint64_t address_;
  size_t length_;
};

// Some bytes of this process, on the host or on an NPU.
class NearBytes {
 public:
  explicit NearBytes(MemoryRange range) : range_(range) {}
  const MemoryRange& range() const { return range_; }
  size_t size() const { return SizeOf(range_); }
  NearBytes subspan(size_t offset, size_t length) const { return NearBytes(SubRange(range_, offset, length)); }
  NearBytes subspan(size_t offset) const { return subspan(offset, size() - offset); }
  NearBytes first(size_t length) const { return subspan(0, length); }
  std::vector<std::byte> Copy() const;

 private:
  MemoryRange range_;
};
void Fill(const NearBytes& bytes, uint64_t seed, uint64_t position = 0);
Result<void> Check(const NearBytes& bytes, uint64_t seed, uint64_t position = 0);
uint64_t HashOf(const NearBytes& bytes);

// Memory of this process, registered while it lives.
class NearMemory {
 public:
  // `npu`: of which it takes a block, each time of the next device; null: of the host.
  NearMemory(TransferEngine& engine, size_t length, std::shared_ptr<NpuRuntime> npu = nullptr);
  ~NearMemory();
  NearMemory(const NearMemory&) = delete;
  NearMemory& operator=(const NearMemory&) = delete;
  NearBytes bytes() const { return NearBytes(range_); }
  // For requests; not to be dereferenced.
  std::byte* at(size_t offset) const { return data_ + offset; }
  void Forget() { registered_ = false; }  // the test has unregistered it

 private:
  TransferEngine& engine_;
  const std::shared_ptr<NpuRuntime> npu_;
  std::byte* data_ = nullptr;
  MemoryRange range_;
  bool registered_ = false;
};

// What is common to all suites. Tests may replace the far end.
class EndsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Without the place of this end's memory.
  std::string wire() const { return WireOf(GetParam()); }
  bool on_npu() const { return OnNpu(GetParam()); }
  bool far_on_npu() const { return FarOnNpu(GetParam()); }
  // What moves requests between near and far memory, as the engine calls it.
  std::string carrier() const { return on_npu() ? "ascend_rdma" : far_on_npu() ? "staged" : wire(); }
  bool one_sided() const {
    return !far_on_npu() && (wire() == "shm" || wire() == "rdma");
  }  // the far process need not run
  // Ends of the same cable, in the guest.
  std::string OneNearDevice() const { return wire() == "rdma" ? "rxe0" : ""; }
  std::string OneFarDevice() const { return wire() == "rdma" ? "rxe1" : ""; }
  // Pulls a cable of the guest ("down") or puts it back ("up").
  static void SetLink(const std::string& device, const std::string& state);
  void OpenBoth(const std::string& near_devices, const std::string& far_devices);
  // Registered here, on an NPU if that is under test.
  NearMemory MakeNearMemory(size_t length) { return MakeNearMemory(*near_, length); }
  NearMemory MakeNearMemory(TransferEngine& engine, size_t length) { return {engine, length, npu_}; }
  // Registered there, of the kind that this wire reaches.
  FarMemory MakeFarMemory(size_t length);
  TransferRequest Request(TransferOpcode opcode, void* local, uint64_t address, size_t length) const {
    return {.opcode = opcode, .local = local, .target = target_, .target_address = address, .length = length};
  }
  TransferRequest Write(const NearMemory& memory, size_t from, const FarMemory& far, size_t to, size_t length) const {
    return Request(TransferOpcode::kWrite, memory.at(from), far.address() + to, length);
  }
  TransferRequest Read(const NearMemory& memory, size_t to, const FarMemory& far, size_t from, size_t length) const {
    return Request(TransferOpcode::kRead, memory.at(to), far.address() + from, length);
  }
  // In a batch of its own, until it has ended.
  Result<TransferStatus> Run(std::span<const TransferRequest> requests, SubmitOptions options = {});
  // A batch that goes on.
  BatchId Begin(std::span<const TransferRequest> requests, SubmitOptions options = {});
  // Waits for its end, frees it.
  TransferStatus End(BatchId batch);
  // The ends of its tasks; frees it.
  std::vector<TransferStatus> EndEach(BatchId batch, size_t tasks);
  void ExpectRoundTrip(const FarMemory& far, uint64_t seed);
  // Both directions, two large requests and `small` small ones each way, all at once.
  void ExpectMixedTraffic(size_t small);

  std::mt19937_64 random_;
  Duration near_timeout_ = std::chrono::seconds(100);  // of what near_ does without a deadline; for OpenBoth
  std::shared_ptr<NpuRuntime> npu_;                    // null unless on_npu()
  std::unique_ptr<TransferEngine> near_;
  std::unique_ptr<FarEnd> far_;
  SegmentId target_ = kInvalidSegment;

 private:
  static uint64_t RandomSeed();
};

template <typename T>
::testing::AssertionResult Succeeded(const Result<T>& result) {
  if (result) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << result.error().ToString();
}
::testing::AssertionResult Completed(const Result<TransferStatus>& result);

#define EXPECT_OK(expression) EXPECT_TRUE(Succeeded(expression))
#define ASSERT_OK(expression) ASSERT_TRUE(Succeeded(expression))
#define EXPECT_COMPLETED(expression) EXPECT_TRUE(Completed(expression))

}  // namespace mooncake::transfer_test
