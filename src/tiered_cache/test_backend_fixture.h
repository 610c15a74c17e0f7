// A backend over two byte-exact heap tiers, with the few calls every test of it needs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tiered_cache/test_heap_tier.h"
#include "tiered_cache/tiered_backend.h"

namespace mooncake {

using Bytes = std::vector<std::byte>;

// `size` bytes that only this key and version have.
inline Bytes ContentOf(std::string_view key, size_t size, unsigned version = 0) {
  Bytes bytes(size);
  uint64_t state = std::hash<std::string_view>()(key) ^ (version * 0x9E3779B97F4A7C15ULL);
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

class BackendFixture : public ::testing::Test {
 protected:
  void OpenBackend(size_t top_bytes, size_t low_bytes, TieredBackend::Options options = {}) {
    top_ = std::make_shared<HeapTier>("top", top_bytes, 10);
    low_ = std::make_shared<HeapTier>("low", low_bytes, 5);
    auto backend = TieredBackend::Open({low_, top_}, std::move(options));
    ASSERT_TRUE(backend) << backend.error().ToString();
    backend_ = std::move(*backend);
  }
  Uuid top() const { return top_->info().id; }
  Uuid low() const { return low_->info().id; }

  Result<AllocationHandle> Written(const Bytes& bytes, std::optional<Uuid> tier = std::nullopt) {
    AllocationHandle handle = MC_TRY(backend_->Allocate(bytes.size(), tier, tier.has_value()));
    MC_TRY(backend_->Write(DataSource::Host(bytes.data(), bytes.size()), handle));
    return handle;
  }
  Result<uint64_t> Put(std::string_view key, const Bytes& bytes, std::optional<Uuid> tier = std::nullopt,
                       CommitOptions options = {}) {
    return backend_->Commit(key, MC_TRY(Written(bytes, tier)), options);
  }
  Result<Bytes> Read(const AllocationHandle& handle) const {
    Bytes bytes(handle->data.size());
    MC_TRY(backend_->copier().Copy(handle->data, DataSource::Host(bytes.data(), bytes.size())));
    return bytes;
  }
  Result<Bytes> GetBytes(std::string_view key, std::optional<Uuid> tier = std::nullopt, bool record_access = true) {
    return Read(MC_TRY(backend_->Get(key, tier, record_access)).handle);
  }
  std::vector<std::string> Keys() const {
    std::vector<std::string> keys;
    backend_->ForEachKey([&](const std::string& key) { keys.push_back(key); });
    std::sort(keys.begin(), keys.end());
    return keys;
  }

  std::shared_ptr<HeapTier> top_;
  std::shared_ptr<HeapTier> low_;
  std::unique_ptr<TieredBackend> backend_;
};

// False when another thread cannot get through the backend's locks, so that somebody must hold one. With one shard
// every key shares the lock.
inline bool ReachableByAnotherThread(const std::shared_ptr<TieredBackend>& backend) {
  auto answer = std::make_shared<std::promise<void>>();
  auto answered = answer->get_future();
  std::thread([backend, answer] {
    (void)backend->Exist("k");
    (void)backend->Get("k", std::nullopt, /*record_access=*/false);
    (void)backend->GetTierViews();
    answer->set_value();
  }).detach();  // it may hang; it holds what it uses
  return answered.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
}

// Outcome of a call that must fail.
template <typename T>
ErrorCode CodeOf(const Result<T>& result) {
  return result ? ErrorCode::OK : result.error().code();
}

}  // namespace mooncake
