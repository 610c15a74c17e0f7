// Put, get and removal between clients of one cluster: every kind of memory on either side.
#include "client/test_cluster.h"

namespace mooncake {
namespace {

const size_t kSizes[] = {0, 1, 64 * kKiB, 4 * kMiB - 1, 4 * kMiB, 4 * kMiB + 1, 20 * kMiB};

enum class Kind { kNone, kDram, kNpu };
std::string NameOf(Kind kind) {
  return kind == Kind::kNone ? "None" : kind == Kind::kDram ? "Dram" : "Npu";
}
std::vector<TierConfig> TiersOf(Kind kind) {
  if (kind == Kind::kNone) return {};
  return {kind == Kind::kDram ? DramTierOf(128 * kMiB) : NpuTierOf(128 * kMiB)};
}

// Where the owner keeps the bytes, and what the reader has itself.
class ObjectPathsTest : public ClusterTest, public ::testing::WithParamInterface<std::tuple<Kind, Kind>> {};

TEST_P(ObjectPathsTest, EverySizeArrivesFromAndInEveryKindOfMemory) {
  const auto [owner_kind, reader_kind] = GetParam();
  const auto owner = Client(TiersOf(owner_kind));
  const auto reader = Client(TiersOf(reader_kind));
  for (const size_t size : kSizes) {
    for (const bool npu_source : {false, true}) {
      SCOPED_TRACE(fmt::format("{} B, source {}", size, npu_source ? "NPU" : "host"));
      const std::string key = fmt::format("{}/{}", size, npu_source);
      const Bytes value = RandomBytes(size, size + npu_source);
      const NpuBlock source(npu_source ? value : Bytes{});
      const PutItem item{key, npu_source && size > 0 ? source.range() : HostRange(const_cast<Bytes&>(value))};
      const auto put = owner->BatchPut(std::span(&item, 1))[0];
      ASSERT_TRUE(put) << put.error().ToString();
      for (RealClient* client : {reader.get(), owner.get()}) {
        const auto got = Get(*client, key);
        ASSERT_TRUE(got) << got.error().ToString();
        EXPECT_TRUE(*got == value);
        Bytes host(size + 3, std::byte{0x77});
        const auto into = GetInto(*client, key, HostRange(host));
        ASSERT_TRUE(into) << into.error().ToString();
        EXPECT_EQ(into->size, size);
        EXPECT_EQ(into->local, client == owner.get());
        EXPECT_TRUE(std::equal(value.begin(), value.end(), host.begin()));
        EXPECT_EQ(Bytes(host.begin() + size, host.end()), Bytes(3, std::byte{0x77}));
        const NpuBlock device(Bytes(size + 3, std::byte{0x77}));
        const auto onto = GetInto(*client, key, device.range());
        ASSERT_TRUE(onto) << onto.error().ToString();
        const Bytes back = device.Read();
        EXPECT_TRUE(std::equal(value.begin(), value.end(), back.begin()));
        EXPECT_EQ(Bytes(back.begin() + size, back.end()), Bytes(3, std::byte{0x77}));
        EXPECT_EQ(*client->GetSize(key), size);
        EXPECT_TRUE(Exists(*client, key));
      }
      ASSERT_TRUE(reader->Remove(key));
      EXPECT_EQ(CodeOf(Get(*owner, key)), ErrorCode::OBJECT_NOT_FOUND);
    }
  }
  EXPECT_EQ(owner->KeyCount(), 0u);
  EXPECT_TRUE(Eventually([&] { return owner->GetTierViews()[0].usage == 0; }));  // the last reply may just be leaving
}

TEST_P(ObjectPathsTest, ClientWithoutTiersPutsIntoTheOthers) {
  const auto [owner_kind, other_kind] = GetParam();
  const auto owner = Client(TiersOf(owner_kind));
  const auto other = Client(TiersOf(other_kind));
  const auto guest = Client({});
  for (const size_t size : kSizes) {
    SCOPED_TRACE(size);
    const std::string key = "guest" + std::to_string(size);
    const Bytes value = RandomBytes(size, size);
    ASSERT_TRUE(Put(*guest, key, value));
    const NpuBlock source(value);
    const std::string npu_key = key + "npu";
    const PutItem item{npu_key, source.range()};
    const auto put = guest->BatchPut(std::span(&item, 1))[0];
    ASSERT_TRUE(put) << put.error().ToString();
    for (RealClient* client : {owner.get(), other.get(), guest.get()}) {
      for (const std::string& name : {key, npu_key}) {
        const auto got = Get(*client, name);
        ASSERT_TRUE(got) << got.error().ToString();
        EXPECT_TRUE(*got == value);
      }
    }
    ASSERT_TRUE(guest->Remove(key));
    ASSERT_TRUE(guest->Remove(npu_key));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ObjectPathsTest,
                         ::testing::Combine(::testing::Values(Kind::kDram, Kind::kNpu),
                                            ::testing::Values(Kind::kNone, Kind::kDram, Kind::kNpu)),
                         [](const auto& kinds) {
                           return NameOf(std::get<0>(kinds.param)) + "To" + NameOf(std::get<1>(kinds.param));
                         });

TEST_F(ClusterTest, RegisteredPointersAreWhatTheyAre) {
  const auto a = Client({NpuTierOf(16 * kMiB)});
  const NpuBlock block(1 * kMiB, 1);
  ASSERT_TRUE(a->RegisterBuffer(block.address(), 1 * kMiB));
  EXPECT_FALSE(IsHost(a->Classify(block.address(), kMiB)));
  const Bytes value = RandomBytes(kMiB, 1);
  ASSERT_TRUE(Put(*a, "k", value));
  ASSERT_TRUE(GetInto(*a, "k", a->Classify(block.address(), kMiB)));
  EXPECT_TRUE(block.Read() == value);
  ASSERT_TRUE(a->UnregisterBuffer(block.address()));
}

TEST_F(ClusterTest, BatchesMixHitsMissesDuplicatesAndBadKeys) {
  const auto a = DramClient();
  const auto b = Client({NpuTierOf(64 * kMiB)});
  const auto reader = DramClient();
  std::vector<std::string> keys;
  std::vector<Bytes> values;
  for (int i = 0; i < 500; ++i) {
    keys.push_back("key" + std::to_string(i % 450));  // the last 50 are duplicates
    values.push_back(RandomBytes(static_cast<size_t>(i % 450) * 37, static_cast<uint64_t>(i % 450)));
    if (i % 5 == 0 || i >= 450) continue;  // every fifth is a miss
    RealClient& home = i % 3 == 0 ? *a : i % 3 == 1 ? *b : *reader;
    ASSERT_TRUE(Put(home, keys.back(), values.back()));
  }
  keys[499] = "";
  const auto views = reader->BatchGet(keys);
  std::vector<Bytes> targets;
  std::vector<GetItem> items;
  for (int i = 0; i < 500; ++i) targets.emplace_back(values[i].size() + (i % 7), std::byte{0x11});
  for (int i = 0; i < 500; ++i) items.push_back({keys[i], HostRange(targets[i])});
  const auto infos = reader->BatchGetInto(items);
  const auto exist = reader->BatchExist(keys);
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE(i);
    const ErrorCode expected = i == 499             ? ErrorCode::INVALID_PARAMS
                               : (i % 450) % 5 == 0 ? ErrorCode::OBJECT_NOT_FOUND
                                                    : ErrorCode::OK;
    ASSERT_EQ(CodeOf(views[i]), expected);
    ASSERT_EQ(CodeOf(infos[i]), expected);
    EXPECT_EQ(CodeOf(exist[i]), i == 499 ? ErrorCode::INVALID_PARAMS : ErrorCode::OK);
    if (i != 499) {
      EXPECT_EQ(*exist[i], expected == ErrorCode::OK);
    }
    if (expected != ErrorCode::OK) continue;
    EXPECT_TRUE(std::equal(values[i].begin(), values[i].end(), views[i]->bytes.begin(), views[i]->bytes.end()));
    EXPECT_TRUE(std::equal(values[i].begin(), values[i].end(), targets[i].begin()));
    EXPECT_EQ(infos[i]->size, values[i].size());
  }
}

TEST_F(ClusterTest, TooSmallTargetIsRefusedAndUntouchedOthersInTheBatchArrive) {
  const auto a = DramClient();
  const auto b = DramClient();
  for (const size_t size : {100 * kKiB, 5 * kMiB}) {
    const Bytes value = RandomBytes(size, 1);
    const std::string key = "big" + std::to_string(size);
    ASSERT_TRUE(Put(*a, key, value));
    ASSERT_TRUE(Put(*a, "fine" + key, value));
    for (RealClient* client : {a.get(), b.get()}) {
      Bytes small(size - 1, std::byte{0x11});
      Bytes fine(size);
      const std::string fine_key = "fine" + key;
      const GetItem items[] = {{key, HostRange(small)}, {fine_key, HostRange(fine)}};
      const auto results = client->BatchGetInto(items);
      ASSERT_EQ(CodeOf(results[0]), ErrorCode::INVALID_PARAMS);
      EXPECT_THAT(results[0].error().message(), ::testing::HasSubstr(std::to_string(size)));
      EXPECT_EQ(small, Bytes(size - 1, std::byte{0x11}));
      ASSERT_TRUE(results[1]);
      EXPECT_TRUE(fine == value);
    }
  }
}

TEST_F(ClusterTest, FirstValueOfAKeyInABatchWins) {
  const auto a = DramClient();
  const auto guest = Client({});
  Bytes one = RandomBytes(100, 1), two = RandomBytes(200, 2);
  for (RealClient* client : {a.get(), guest.get()}) {
    const std::string key = client == a.get() ? "local" : "remote";
    const PutItem items[] = {{key, HostRange(one)}, {key, HostRange(two)}, {"", HostRange(one)}};
    const auto results = client->BatchPut(items);
    EXPECT_TRUE(results[0] && results[1]);
    EXPECT_EQ(CodeOf(results[2]), ErrorCode::INVALID_PARAMS);
    EXPECT_TRUE(*Get(*a, key) == one);
  }
}

TEST_F(ClusterTest, RemovalIsSeenEverywhereAtOnce) {
  const auto a = DramClient();
  const auto b = DramClient();
  const auto guest = Client({});
  for (int i = 0; i < 50; ++i) {
    const std::string key = "k" + std::to_string(i);
    ASSERT_TRUE(Put(i % 2 == 0 ? *a : *b, key, RandomBytes(10, 1)));
    RealClient& remover = i % 3 == 0 ? *a : i % 3 == 1 ? *b : *guest;
    ASSERT_TRUE(remover.Remove(key));
    for (RealClient* client : {a.get(), b.get(), guest.get()}) {
      EXPECT_FALSE(Exists(*client, key));
      EXPECT_EQ(CodeOf(client->GetSize(key)), ErrorCode::OBJECT_NOT_FOUND);
      EXPECT_EQ(CodeOf(Get(*client, key)), ErrorCode::OBJECT_NOT_FOUND);
      EXPECT_EQ(CodeOf(client->Remove(key)), ErrorCode::OBJECT_NOT_FOUND);
    }
  }
  EXPECT_EQ(master_->KeyCount(), 0u);
}

TEST_F(ClusterTest, RemoveAllEmptiesEveryClientAndCounts) {
  const auto a = DramClient();
  const auto b = DramClient();
  const auto guest = Client({});
  for (RealClient* remover : {a.get(), guest.get()}) {
    for (int i = 0; i < 40; ++i) ASSERT_TRUE(Put(i % 4 == 0 ? *a : *b, "k" + std::to_string(i), RandomBytes(10, 1)));
    const auto removed = remover->RemoveAll();
    ASSERT_TRUE(removed) << removed.error().ToString();
    EXPECT_EQ(*removed, 40u);
    EXPECT_EQ(a->KeyCount() + b->KeyCount() + master_->KeyCount(), 0u);
    EXPECT_FALSE(Exists(*guest, "k1"));
  }
}

TEST_F(ClusterTest, PutOfAKeyAnotherClientHasKeepsTheFirstBytesAndOneCopy) {
  const auto a = DramClient();
  const auto b = DramClient();
  const auto guest = Client({});
  const Bytes first = RandomBytes(5000, 1);
  ASSERT_TRUE(Put(*a, "k", first));
  ASSERT_TRUE(Put(*b, "k", RandomBytes(6000, 2)));
  ASSERT_TRUE(Put(*guest, "k", RandomBytes(7000, 3)));
  ASSERT_TRUE(Put(*a, "k", RandomBytes(8000, 4)));
  EXPECT_EQ(a->KeyCount(), 1u);
  EXPECT_EQ(b->KeyCount(), 0u);
  for (RealClient* client : {a.get(), b.get(), guest.get()}) EXPECT_TRUE(*Get(*client, "k") == first);
}

TEST_F(ClusterTest, RacingPutsEndWithOneOwnerAndOneContentEverywhere) {
  const auto a = DramClient();
  const auto b = DramClient();
  constexpr int kKeys = 300;
  const Bytes of_a = RandomBytes(1000, 1), of_b = RandomBytes(2000, 2);
  const auto put_all = [&](RealClient& client, const Bytes& value) {
    for (int i = 0; i < kKeys; ++i) EXPECT_TRUE(Put(client, "k" + std::to_string(i), value));
  };
  std::thread other([&] { put_all(*b, of_b); });
  put_all(*a, of_a);
  other.join();
  EXPECT_EQ(a->KeyCount() + b->KeyCount(), static_cast<size_t>(kKeys));
  EXPECT_EQ(master_->KeyCount(), static_cast<size_t>(kKeys));
  for (int i = 0; i < kKeys; ++i) {
    const auto at_a = Get(*a, "k" + std::to_string(i));
    const auto at_b = Get(*b, "k" + std::to_string(i));
    ASSERT_TRUE(at_a && at_b);
    EXPECT_TRUE(*at_a == *at_b);
    EXPECT_TRUE(*at_a == of_a || *at_a == of_b);
  }
}

TEST_F(ClusterTest, EvictedKeysBecomeMissesAndTheMasterLearns) {
  const auto owner = DramClient(8 * kMiB);
  const auto reader = DramClient();
  for (int i = 0; i < 40; ++i)
    ASSERT_TRUE(Put(*owner, "k" + std::to_string(i), RandomBytes(kMiB, static_cast<uint64_t>(i))));
  EXPECT_LE(owner->KeyCount(), 8u);
  EXPECT_EQ(master_->KeyCount(), owner->KeyCount());  // each put waits for the announcements before it
  size_t found = 0;
  for (int i = 0; i < 40; ++i) {
    const auto got = Get(*reader, "k" + std::to_string(i));
    if (!got) {
      EXPECT_EQ(got.error().code(), ErrorCode::OBJECT_NOT_FOUND);
      continue;
    }
    ++found;
    EXPECT_TRUE(*got == RandomBytes(kMiB, static_cast<uint64_t>(i)));
  }
  EXPECT_EQ(found, owner->KeyCount());
}

TEST_F(ClusterTest, ValueThatFitsNowhereIsRefusedWithTheSizes) {
  const auto owner = DramClient(8 * kMiB);
  const auto guest = Client({});
  for (RealClient* client : {owner.get(), guest.get()}) {
    const auto put = Put(*client, "k", Bytes(9 * kMiB));
    ASSERT_FALSE(put);
    EXPECT_THAT(put.error().message(), ::testing::HasSubstr(std::to_string(9 * kMiB)));
  }
  EXPECT_FALSE(Exists(*guest, "k"));
}

TEST_F(ClusterTest, ViewOfLocalBytesOutlivesRemovalEvictionAndTheClient) {
  auto owner = DramClient(8 * kMiB);
  const Bytes one = RandomBytes(kMiB, 1), two = RandomBytes(kMiB, 2);
  ASSERT_TRUE(Put(*owner, "one", one));
  ASSERT_TRUE(Put(*owner, "two", two));
  const std::string keys[] = {"one", "two"};
  auto views = owner->BatchGet(keys);
  ASSERT_TRUE(views[0] && views[1]);
  EXPECT_TRUE(views[0]->info.local);
  ASSERT_TRUE(owner->Remove("one"));
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(Put(*owner, "k" + std::to_string(i), RandomBytes(kMiB, 100)));
  const auto same = [](const ObjectBytes& view, const Bytes& value) {
    return std::equal(value.begin(), value.end(), view.bytes.begin(), view.bytes.end());
  };
  EXPECT_TRUE(same(*views[0], one) && same(*views[1], two));
  owner->Close();
  EXPECT_TRUE(same(*views[0], one) && same(*views[1], two));
  owner.reset();
  EXPECT_TRUE(same(*views[0], one) && same(*views[1], two));
}

TEST_F(ClusterTest, AsynchronousAnnouncementsArriveInTheEnd) {
  auto options = OptionsFor(master_->port(), {DramTierOf(64 * kMiB)});
  options.async_announce = true;
  const auto owner = OpenClient(options);
  const auto reader = DramClient();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Put(*owner, "k" + std::to_string(i), RandomBytes(10, 1)));
  EXPECT_TRUE(Eventually([&] { return Get(*reader, "k99").has_value() && master_->KeyCount() == 100; }));
}

TEST_F(ClusterTest, ReportsShowTiersClientsAndTraffic) {
  auto options = OptionsFor(master_->port(), {DramTierOf(64 * kMiB)});
  options.enable_http = true;
  options.http_port = 0;
  const auto a = OpenClient(options);
  const auto b = DramClient();
  ASSERT_TRUE(Put(*a, "k", RandomBytes(1000, 1)));
  ASSERT_TRUE(Get(*b, "k"));
  EXPECT_FALSE(Get(*b, "other"));
  EXPECT_NE(a->http_port(), 0);
  EXPECT_EQ(a->health(), ClientHealth::FULL);
  const auto list = b->ListClients();
  ASSERT_TRUE(list);
  EXPECT_EQ(list->clients.size(), 2u);
  EXPECT_EQ(list->key_count, 1u);
  EXPECT_THAT(a->MetricsText(), ::testing::HasSubstr("mooncake_p2p_peer_read_remote_data_hits_total 1"));
  EXPECT_THAT(b->MetricsText(), ::testing::HasSubstr("mooncake_p2p_remote_get_hits_total 1"));
  EXPECT_THAT(b->MetricsText(), ::testing::HasSubstr("mooncake_p2p_remote_get_misses_total 1"));
}

}  // namespace
}  // namespace mooncake
