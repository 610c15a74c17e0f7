// A cluster in one process for the client's tests: a master and clients with small tiers, on 127.0.0.1.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "client/real_client.h"
#include "master/master_service.h"

namespace mooncake {

inline constexpr size_t kKiB = 1 << 10;
inline constexpr size_t kMiB = 1 << 20;

using Bytes = std::vector<std::byte>;

inline Bytes RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, size - i));
  }
  return bytes;
}

// Looks again until `condition` holds; false after a minute.
inline bool Eventually(const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::After(std::chrono::seconds(60));
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  while (!condition()) {
    if (deadline.Passed()) return false;
    never.wait_for(lock, std::chrono::milliseconds(2));
  }
  return true;
}

inline TierConfig DramTierOf(uint64_t capacity) {
  TierConfig tier;
  tier.type = kDramTierType;
  tier.capacity_bytes = capacity;
  tier.priority = 10;
  return tier;
}
inline TierConfig NpuTierOf(uint64_t capacity, int32_t device_id = 0) {
  TierConfig tier;
  tier.type = kAscendTierType;
  tier.capacity_bytes = capacity;
  tier.priority = 100;
  tier.device_id = device_id;
  return tier;
}

inline std::unique_ptr<MasterService> OpenMaster(uint16_t port = 0, MasterOptions options = {},
                                                 const Clock& clock = SteadyClock::Instance()) {
  options.listen = {"127.0.0.1", port};
  auto master = MasterService::Open(options, clock);
  EXPECT_TRUE(master) << master.error().ToString();
  return master ? std::move(*master) : nullptr;
}

inline RealClientOptions OptionsFor(uint16_t master_port, std::vector<TierConfig> tiers) {
  RealClientOptions options;
  options.local_hostname = "127.0.0.1";
  options.master = {"127.0.0.1", master_port};
  options.tiers.tiers = std::move(tiers);
  options.lock_shard_count = 64;
  options.call_timeout = std::chrono::seconds(30);
  return options;
}

inline std::unique_ptr<RealClient> OpenClient(RealClientOptions options) {
  auto client = RealClient::Open(std::move(options));
  EXPECT_TRUE(client) << client.error().ToString();
  return client ? std::move(*client) : nullptr;
}

inline Result<void> Put(RealClient& client, std::string_view key, const Bytes& value) {
  const PutItem item{key, HostRange(const_cast<std::byte*>(value.data()), value.size())};
  return client.BatchPut(std::span(&item, 1))[0];
}
inline Result<Bytes> Get(RealClient& client, const std::string& key) {
  auto results = client.BatchGet(std::span(&key, 1));
  if (!results[0]) return std::unexpected(results[0].error());
  return Bytes(results[0]->bytes.begin(), results[0]->bytes.end());
}
inline Result<ObjectInfo> GetInto(RealClient& client, std::string_view key, MemoryRange target) {
  const GetItem item{key, target};
  return client.BatchGetInto(std::span(&item, 1))[0];
}
template <typename T>
ErrorCode CodeOf(const Result<T>& result) {
  return result ? ErrorCode::OK : result.error().code();
}
inline bool Exists(RealClient& client, const std::string& key) {
  const auto result = client.BatchExist(std::span(&key, 1))[0];
  EXPECT_TRUE(result) << result.error().ToString();
  return result && *result;
}

// NPU memory of the application.
class NpuBlock {
 public:
  explicit NpuBlock(size_t size, int32_t device_id = 0) : size_(size) {
    auto runtime = OpenNpuRuntime();
    MC_CHECK(runtime.has_value(), "{}", runtime.error().ToString());
    runtime_ = *runtime;
    EXPECT_TRUE(runtime_->OpenDevice(device_id));
    if (size_ > 0) pointer_ = *runtime_->Allocate(device_id, size_);
  }
  explicit NpuBlock(const Bytes& bytes, int32_t device_id = 0) : NpuBlock(bytes.size(), device_id) {
    EXPECT_TRUE(CopyFromHost(range(), bytes));
  }
  ~NpuBlock() {
    const auto freed = size_ > 0 ? runtime_->Free(pointer_) : Result<void>{};
    EXPECT_TRUE(freed) << freed.error().ToString();
  }
  NpuBlock(const NpuBlock&) = delete;
  NpuBlock& operator=(const NpuBlock&) = delete;
  MemoryRange range() const {
    if (size_ == 0) return HostRange{};
    return NpuRange{pointer_, size_, runtime_.get()};
  }
  void* address() const { return reinterpret_cast<void*>(static_cast<uintptr_t>(pointer_.device_ptr)); }
  Bytes Read() const {
    Bytes bytes(size_);
    EXPECT_TRUE(CopyToHost(HostRange(bytes), range()));
    return bytes;
  }

 private:
  const size_t size_;
  std::shared_ptr<NpuRuntime> runtime_;
  AscendUnifiedPointer pointer_;
};

class ClusterTest : public ::testing::Test {
 protected:
  ClusterTest() : master_(OpenMaster()) {}
  std::unique_ptr<RealClient> Client(std::vector<TierConfig> tiers) {
    return OpenClient(OptionsFor(master_->port(), std::move(tiers)));
  }
  std::unique_ptr<RealClient> DramClient(uint64_t capacity = 64 * kMiB) { return Client({DramTierOf(capacity)}); }

  ManualClock clock_;  // for a master whose time stands still; outlives it
  std::unique_ptr<MasterService> master_;
};

}  // namespace mooncake
