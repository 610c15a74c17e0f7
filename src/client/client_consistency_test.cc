// What a success promises while others write, remove and evict: readable at once, and never torn.
#include <xxhash.h>

#include "client/test_cluster.h"
#include "protocol/methods.h"
#include "protocol/peer_messages.h"
#include "rpc/rpc_test_util.h"

namespace mooncake {
namespace {

// A block that says what it is: size, seed and a hash over the rest.
Bytes SelfDescribing(size_t size, uint64_t seed) {
  Bytes bytes = RandomBytes(size, seed);
  const uint64_t hash = XXH3_64bits(bytes.data() + 16, size - 16);
  std::memcpy(bytes.data(), &hash, 8);
  const uint64_t length = size;
  std::memcpy(bytes.data() + 8, &length, 8);
  return bytes;
}
bool Sound(std::span<const std::byte> bytes) {
  if (bytes.size() < 16) return false;
  uint64_t hash = 0, length = 0;
  std::memcpy(&hash, bytes.data(), 8);
  std::memcpy(&length, bytes.data() + 8, 8);
  return length == bytes.size() && hash == XXH3_64bits(bytes.data() + 16, bytes.size() - 16);
}

class ConsistencyTest : public ClusterTest {};

TEST_F(ConsistencyTest, WhatPutReturnedForIsReadableElsewhereAtOnce) {
  const auto a = DramClient(128 * kMiB);
  const auto b = DramClient(128 * kMiB);
  const auto guest = Client({});
  constexpr int kThreads = 4, kKeys = 1000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      RealClient& writer = t == 0 ? *guest : t % 2 == 0 ? *a : *b;
      RealClient& reader = t % 2 == 0 ? *b : *a;
      for (int i = 0; i < kKeys; ++i) {
        const std::string key = fmt::format("{}/{}", t, i);
        const Bytes value = SelfDescribing(16 + static_cast<size_t>(i), static_cast<uint64_t>(t * kKeys + i));
        ASSERT_TRUE(Put(writer, key, value));
        const auto got = Get(reader, key);
        ASSERT_TRUE(got) << key << ": " << got.error().ToString();
        ASSERT_TRUE(*got == value) << key;
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// Replies wait in full sockets while the key goes and its room is wanted for others.
TEST_F(ConsistencyTest, RepliesUnderWayKeepTheirBytesThroughRemovalAndEviction) {
  const auto owner = DramClient(16 * kMiB);
  const Bytes value = SelfDescribing(4 * kMiB, 1);
  ASSERT_TRUE(Put(*owner, "k", value));
  rpc::RawPeer peer = rpc::RawPeer::ConnectTo(Endpoint::Parse(owner->hostname())->port);
  ASSERT_TRUE(peer.ShakeHandsAsClient());
  constexpr int kReplies = 12;
  for (int i = 0; i < kReplies; ++i) {
    ASSERT_TRUE(peer.SendFrame({.kind = rpc::internal::FrameKind::kRequest,
                                .method = protocol::kPeerGet,
                                .id = static_cast<uint64_t>(i + 1),
                                .budget_ms = 60'000},
                               rpc::Encode(protocol::GetRequest{{"k"}})));
  }
  const std::string all_served = fmt::format("mooncake_p2p_peer_read_remote_data_hits_total {}\n", kReplies);
  ASSERT_TRUE(Eventually([&] { return owner->MetricsText().find(all_served) != std::string::npos; }));
  ASSERT_TRUE(owner->Remove("k"));
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(Put(*owner, std::to_string(i), RandomBytes(4 * kMiB, 2)));
  for (int i = 0; i < kReplies; ++i) {
    const auto frame = peer.ReceiveFrame();
    ASSERT_TRUE(frame);
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(frame->payload)), value)) << i;
  }
  ASSERT_TRUE(owner->RemoveAll());
  EXPECT_TRUE(Eventually([&] { return owner->GetTierViews()[0].usage == 0; }));
}

class TornReadTest : public ConsistencyTest, public ::testing::WithParamInterface<bool> {};

TEST_P(TornReadTest, ReadersSeeWholeContentsOrMisses) {
  const bool npu = GetParam();
  // Little room, so that eviction and reuse of blocks go on all the time.
  const auto owner = Client({npu ? NpuTierOf(24 * kMiB) : DramTierOf(24 * kMiB)});
  const auto reader = Client({});
  const size_t sizes[] = {100, 3000, 70'000, kMiB, 5 * kMiB, 9 * kMiB};
  std::vector<Bytes> contents;
  for (size_t i = 0; i < std::size(sizes); ++i) contents.push_back(SelfDescribing(sizes[i], i));
  std::atomic<bool> done{false};
  std::atomic<int> hits{0};
  std::vector<std::thread> readers;
  for (RealClient* client : {reader.get(), reader.get(), owner.get()}) {
    readers.emplace_back([&, client] {
      Bytes target(9 * kMiB);
      for (int i = 0; !done.load(); ++i) {
        const std::string key = "k" + std::to_string(i % 3);
        if (i % 2 == 0) {
          const auto results = client->BatchGet(std::span(&key, 1));
          if (results[0]) {
            ++hits;
            EXPECT_TRUE(Sound(results[0]->bytes));
          } else {
            EXPECT_EQ(results[0].error().code(), ErrorCode::OBJECT_NOT_FOUND) << results[0].error().ToString();
          }
        } else {
          const auto got = GetInto(*client, key, HostRange(target));
          if (got) {
            ++hits;
            EXPECT_TRUE(Sound(std::span(target).first(got->size)));
          } else {
            EXPECT_EQ(got.error().code(), ErrorCode::OBJECT_NOT_FOUND) << got.error().ToString();
          }
        }
      }
    });
  }
  constexpr int kRounds = 400;
  for (int i = 0; i < kRounds || hits.load() < 20; ++i) {
    const std::string key = "k" + std::to_string(i % 3);
    RealClient& writer = i % 5 == 4 ? *reader : *owner;
    const auto put = Put(writer, key, contents[static_cast<size_t>(i) % contents.size()]);
    // Blocks that readers hold cannot go: then there may be no room.
    if (!put) {
      EXPECT_EQ(put.error().code(), ErrorCode::NO_AVAILABLE_HANDLE) << put.error().ToString();
    }
    const auto removed = writer.Remove("k" + std::to_string((i + 1) % 3));
    if (!removed) {
      EXPECT_EQ(removed.error().code(), ErrorCode::OBJECT_NOT_FOUND) << removed.error().ToString();
    }
  }
  done.store(true);
  for (auto& thread : readers) thread.join();
  ASSERT_TRUE(owner->RemoveAll());
  EXPECT_TRUE(Eventually([&] { return owner->GetTierViews()[0].usage == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Memory, TornReadTest, ::testing::Bool(),
                         [](const auto& npu) { return npu.param ? "Npu" : "Dram"; });

}  // namespace
}  // namespace mooncake
