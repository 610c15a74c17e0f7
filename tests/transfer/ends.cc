// Opening the two ends, and what tests do with them.
#include "transfer/ends.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>

#include "common/check.h"
#include "transfer/pattern.h"

namespace mooncake::transfer_test {

::testing::AssertionResult Completed(const Result<TransferStatus>& result) {
  if (!result) return Succeeded(result);
  if (result->state == TransferState::kCompleted) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << TransferStateName(result->state) << ": " << result->error.ToString();
}

std::string FarMemory::Range(size_t offset, size_t length) const {
  MC_CHECK(offset <= length_ && length <= length_ - offset, "[{}, +{}) of {}", offset, length, length_);
  return fmt::format("{} {}", address_ + offset, length);
}

void FarMemory::Fill(uint64_t seed, size_t offset, size_t length) const {
  EXPECT_OK(end_->Do(fmt::format("fill {} {} {}", Range(offset, length), seed, offset)));
}

void FarMemory::Expect(uint64_t seed, size_t offset, size_t length) const {
  EXPECT_OK(end_->Do(fmt::format("check {} {} {}", Range(offset, length), seed, offset)));
}

uint64_t FarMemory::Hash() const {
  const auto hash = end_->AskNumber("hash " + Range(0, length_));
  EXPECT_OK(hash);
  return hash.value_or(0);
}

// --- the near end

std::vector<std::byte> NearBytes::Copy() const {
  std::vector<std::byte> copy(size());
  const auto copied = CopyToHost(copy, range_);
  MC_CHECK(copied.has_value(), "{}", copied.error().ToString());
  return copy;
}

void Fill(const NearBytes& bytes, uint64_t seed, uint64_t position) {
  if (const auto* const host = std::get_if<HostRange>(&bytes.range())) return Fill(*host, seed, position);
  std::vector<std::byte> pattern(bytes.size());
  Fill(pattern, seed, position);
  const auto copied = CopyFromHost(bytes.range(), pattern);
  MC_CHECK(copied.has_value(), "{}", copied.error().ToString());
}

Result<void> Check(const NearBytes& bytes, uint64_t seed, uint64_t position) {
  if (const auto* const host = std::get_if<HostRange>(&bytes.range())) return Check(*host, seed, position);
  return Check(bytes.Copy(), seed, position);
}

uint64_t HashOf(const NearBytes& bytes) {
  return HashOf(bytes.Copy());
}

NearMemory::NearMemory(TransferEngine& engine, size_t length, std::shared_ptr<NpuRuntime> npu)
    : engine_(engine), npu_(std::move(npu)) {
  if (npu_ != nullptr) {
    static std::atomic<int32_t> made{0};
    const int32_t device = made++ % npu_->DeviceCount();
    MC_CHECK(npu_->OpenDevice(device).has_value(), "NPU {}", device);
    const auto block = npu_->Allocate(device, length);
    MC_CHECK(block.has_value(), "{}", block.error().ToString());
    data_ = reinterpret_cast<std::byte*>(block->device_ptr);
    range_ = NpuRange{*block, length, npu_.get()};
  } else {
    void* const at = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MC_CHECK(at != MAP_FAILED, "no memory for {} B", length);
    data_ = static_cast<std::byte*>(at);
    range_ = HostRange(data_, length);
  }
  const auto registered = engine.RegisterMemory(data_, length);
  EXPECT_OK(registered);
  registered_ = registered.has_value();
}

NearMemory::~NearMemory() {
  if (registered_) {
    EXPECT_OK(engine_.UnregisterMemory(data_));
  }
  if (npu_ != nullptr) {
    EXPECT_OK(npu_->Free(std::get<NpuRange>(range_).at));
  } else {
    munmap(data_, SizeOf(range_));
  }
}

uint64_t EndsTest::RandomSeed() {
  const char* const given = std::getenv("MC_TRANSFER_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

void EndsTest::SetUp() {
  AllowManyFiles();
  const uint64_t seed = RandomSeed();
  random_.seed(seed);
  RecordProperty("seed", std::to_string(seed));
  std::printf("seed %llu (MC_TRANSFER_TEST_SEED)\n", static_cast<unsigned long long>(seed));
  if (on_npu()) {
    auto npu = OpenNpuRuntime();
    ASSERT_OK(npu);
    npu_ = std::move(*npu);
  }
  ASSERT_NO_FATAL_FAILURE(OpenBoth(OneNearDevice(), OneFarDevice()));
}

void EndsTest::SetLink(const std::string& device, const std::string& state) {
  ASSERT_EQ(std::system(("ip link set " + device + " " + state).c_str()), 0);
}

void EndsTest::OpenBoth(const std::string& near_devices, const std::string& far_devices) {
  far_.reset();
  near_.reset();
  TransferEngineOptions options = NearOptions(GetParam(), near_devices);
  options.default_timeout = near_timeout_;
  auto near = TransferEngine::Open(std::move(options));
  ASSERT_OK(near);
  near_ = std::move(*near);
  if (wire() == "local") {
    far_ = std::make_unique<FarEnd>(*near_);
  } else {
    auto far = FarEnd::Start(wire(), 0, far_devices);
    ASSERT_OK(far);
    far_ = std::move(*far);
  }
  const auto target = near_->OpenSegment(far_->ports().name, Soon());
  ASSERT_OK(target);
  target_ = *target;
}

void EndsTest::TearDown() {
  if (wire() == "local") {
    near_.reset();  // before the memory of the far end, which is in the shell
    far_.reset();
  }
}

FarMemory EndsTest::MakeFarMemory(size_t length) {
  if (wire() == "shm") {
    const auto address = far_->AskNumber(fmt::format("allocate {}", length));
    EXPECT_OK(address);
    return {*far_, address.value_or(0), length};
  }
  const auto address =
      far_->AskNumber(far_on_npu() ? fmt::format("map_npu {}", length) : fmt::format("map {} 0 0", length));
  EXPECT_OK(address);
  EXPECT_OK(far_->Do(fmt::format("register {} {}", address.value_or(0), length)));
  return {*far_, address.value_or(0), length};
}

Result<TransferStatus> EndsTest::Run(std::span<const TransferRequest> requests, SubmitOptions options) {
  const BatchId batch = MC_TRY(near_->AllocateBatch(requests.size()));
  const auto submitted = near_->Submit(batch, requests, std::move(options));
  if (!submitted) {
    EXPECT_OK(near_->FreeBatch(batch));
    return std::unexpected(submitted.error());
  }
  return End(batch);
}

BatchId EndsTest::Begin(std::span<const TransferRequest> requests, SubmitOptions options) {
  const auto batch = near_->AllocateBatch(requests.size());
  EXPECT_OK(batch);
  if (!batch) return kInvalidBatch;
  EXPECT_OK(near_->Submit(*batch, requests, std::move(options)));
  return *batch;
}

TransferStatus EndsTest::End(BatchId batch) {
  const auto status = near_->Wait(batch, Soon());
  EXPECT_OK(status);
  if (!status) return {};
  EXPECT_NE(TransferStateName(status->state), "WAITING");
  EXPECT_OK(near_->FreeBatch(batch));
  return *status;
}

std::vector<TransferStatus> EndsTest::EndEach(BatchId batch, size_t tasks) {
  const auto status = near_->Wait(batch, Soon());
  EXPECT_OK(status);
  std::vector<TransferStatus> ends;
  for (size_t i = 0; i < tasks; ++i) {
    const auto end = near_->TaskStatus(batch, i);
    EXPECT_OK(end);
    ends.push_back(end.value_or(TransferStatus{}));
    EXPECT_NE(TransferStateName(ends.back().state), "WAITING") << "task " << i;
  }
  EXPECT_OK(near_->FreeBatch(batch));
  return ends;
}

void EndsTest::ExpectRoundTrip(const FarMemory& far, uint64_t seed) {
  const size_t length = std::min<size_t>(far.length(), kMiB);
  NearMemory memory = MakeNearMemory(length);
  Fill(memory.bytes(), seed);
  const TransferRequest write = Write(memory, 0, far, 0, length);
  EXPECT_COMPLETED(Run({&write, 1}));
  far.Expect(seed, 0, length);
  Fill(memory.bytes(), ~seed);
  const TransferRequest read = Read(memory, 0, far, 0, length);
  EXPECT_COMPLETED(Run({&read, 1}));
  EXPECT_OK(Check(memory.bytes(), seed));
}

void EndsTest::ExpectMixedTraffic(size_t small) {
  const FarMemory far = MakeFarMemory(9 * kMiB);
  NearMemory near = MakeNearMemory(9 * kMiB);
  Fill(near.bytes(), 2);
  far.Fill(3, 6 * kMiB, 3 * kMiB);
  std::vector<TransferRequest> requests = {Write(near, 0, far, 0, 5 * kMiB),
                                           Read(near, 6 * kMiB, far, 6 * kMiB, 2 * kMiB)};
  for (size_t i = 0; i < small; ++i) {
    requests.push_back(Write(near, 5 * kMiB + i * 100, far, 5 * kMiB + i * 100, 100));
    requests.push_back(Read(near, 8 * kMiB + i * 100, far, 8 * kMiB + i * 100, 100));
  }
  EXPECT_COMPLETED(Run(requests));
  far.Expect(2, 0, 5 * kMiB + small * 100);
  EXPECT_OK(Check(near.bytes().subspan(6 * kMiB, 2 * kMiB), 3, 6 * kMiB));
  EXPECT_OK(Check(near.bytes().subspan(8 * kMiB, small * 100), 3, 8 * kMiB));
}

}  // namespace mooncake::transfer_test
