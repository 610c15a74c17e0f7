// Messages keep every field on the way, take those of older peers, and calls keep their numbers.
#include <gtest/gtest.h>

#include <limits>

#include "protocol/key_records.h"
#include "protocol/master_messages.h"
#include "protocol/methods.h"
#include "protocol/peer_messages.h"

namespace mooncake::protocol {
namespace {

constexpr ContentStamp kStamp{.hlc = uint64_t{1} << 60, .writer = 0xfeedbeef, .upserted = true};

// What was sent is what arrives: same bytes when it is sent on.
template <typename T>
T Arrived(const T& sent) {
  const std::string bytes = rpc::Encode(sent);
  auto received = rpc::Decode<T>(bytes);
  EXPECT_TRUE(received) << received.error().ToString();
  EXPECT_EQ(rpc::Encode(*received), bytes);
  return std::move(*received);
}

// A message of a peer that knows none of its fields.
template <typename T>
T OfAnOldPeer() {
  auto received = rpc::Decode<T>(rpc::Encode(std::map<std::string, int>{}));
  EXPECT_TRUE(received);
  return std::move(*received);
}

TEST(MasterMessagesTest, RegistrationAndHeartbeatKeepTheirFields) {
  const auto request = Arrived(RegisterRequest{
      .client_id = {1, 2}, .sequence = 3, .endpoint = "h:1", .host_id = "host", .resync = true, .draining = true});
  EXPECT_EQ(request.host_id, "host");
  EXPECT_TRUE(request.resync && request.draining);
  const auto reply = Arrived(RegisterReply{.client_ttl_ms = 1, .term = 2, .hlc = 3});
  EXPECT_EQ(reply.term, 2u);
  EXPECT_EQ(reply.hlc, 3u);
  const auto beat = Arrived(HeartbeatRequest{.client_id = {1, 2}, .draining = true, .counters = {{"gets", 7}}});
  EXPECT_TRUE(beat.draining);
  EXPECT_EQ(beat.counters.at("gets"), 7u);
  const auto answer =
      Arrived(HeartbeatReply{.known = true, .term = 1, .hlc = 2, .best_peer_free = 0.25, .healthy_clients = 4});
  EXPECT_EQ(answer.best_peer_free, 0.25);
  EXPECT_EQ(answer.healthy_clients, 4u);
}

TEST(MasterMessagesTest, AnnouncementsKeepStampsAndWhoIsSuperseded) {
  const auto request = Arrived(
      AnnounceRequest{.keys = {{.key = {1, 2}, .present = true, .size = 3, .type = 1, .stamp = kStamp, .wanted = 2}},
                      .resync = true,
                      .resync_done = true,
                      .packed = std::string("\0\xff", 2)});
  ASSERT_EQ(request.keys.size(), 1u);
  EXPECT_EQ(request.keys[0].stamp, kStamp);
  EXPECT_EQ(request.keys[0].wanted, 2u);
  EXPECT_TRUE(request.resync && request.resync_done);
  EXPECT_EQ(request.packed, std::string("\0\xff", 2));
  const auto reply = Arrived(
      AnnounceReply{.rejected = {4},
                    .superseded = {{.position = 5, .clients = {{.id = {6, 7}, .endpoint = "h:1", .host_id = "x"}}}},
                    .hlc = 8});
  ASSERT_EQ(reply.superseded.size(), 1u);
  EXPECT_EQ(reply.superseded[0].position, 5u);
  EXPECT_EQ(reply.superseded[0].clients.at(0).host_id, "x");
  EXPECT_EQ(reply.hlc, 8u);
}

TEST(MasterMessagesTest, RoutesAndRemovalsKeepTheirFields) {
  const auto request = Arrived(WriteRouteRequest{.keys = {{1, 2}},
                                                 .sizes = {3},
                                                 .self = {4, 5},
                                                 .replicas = 2,
                                                 .replace = true,
                                                 .preferred = {"h:1", "h:2"},
                                                 .same_node = true,
                                                 .policy = {.max_candidates = 5,
                                                            .strategy = 1,
                                                            .remote_weight = 1,
                                                            .top_tier_only = false,
                                                            .early_return = false,
                                                            .tag_filters = {"slow"},
                                                            .priority_limit = -3}});
  EXPECT_EQ(request.self, (Uuid{4, 5}));
  EXPECT_EQ(request.replicas, 2u);
  EXPECT_TRUE(request.replace && request.same_node);
  EXPECT_EQ(request.preferred.size(), 2u);
  EXPECT_EQ(request.policy.remote_weight, 1);
  EXPECT_EQ(request.policy.priority_limit, -3);
  EXPECT_EQ(request.policy.tag_filters.at(0), "slow");
  EXPECT_FALSE(request.policy.top_tier_only || request.policy.early_return);
  EXPECT_EQ(Arrived(WriteRouteReply{.targets = {0}, .candidates = {{0, 1}}}).candidates.at(0).at(1), 1u);
  EXPECT_EQ(Arrived(LookupReply{.routes = {{{.client = 1, .size = 2, .stamp = kStamp}}}}).routes[0][0].stamp, kStamp);
  EXPECT_EQ(Arrived(ReportPeerRequest{.reporter = {1, 2}, .peer = {3, 4}, .sequence = 5}).peer, (Uuid{3, 4}));
  EXPECT_EQ(Arrived(RemoveKeysRequest{.keys = {{1, 2}}, .hlc = 9}).hlc, 9u);
  EXPECT_EQ(Arrived(RemoveKeysReply{.routes = {{}, {{.client = 1}}}}).routes[1][0].client, 1u);
  EXPECT_EQ(Arrived(RemoveFloorRequest{.hlc = 9}).hlc, 9u);
}

TEST(PeerMessagesTest, ObjectsKeepStampSumAndWindow) {
  const auto request = Arrived(GetRequest{.keys = {"a"}, .windows = true, .inline_limit = 16384});
  EXPECT_TRUE(request.windows);
  EXPECT_EQ(request.inline_limit, 16384u);
  const auto reply = Arrived(GetReply{
      .objects = {
          {.size = 1, .stamp = kStamp, .sum = UINT64_MAX, .has_sum = true, .window = 2, .address = 3, .key = 4}}});
  const ObjectState& object = reply.objects.at(0);
  EXPECT_EQ(object.stamp, kStamp);
  EXPECT_EQ(object.sum, UINT64_MAX);
  EXPECT_TRUE(object.has_sum);
  EXPECT_EQ(object.window, 2u);
  EXPECT_EQ(object.address, 3u);
  EXPECT_EQ(object.key, 4u);
}

TEST(PeerMessagesTest, WritesAndWindowsKeepTheirFields) {
  const auto put = Arrived(
      PutRequest{.keys = {"a"}, .sizes = {1}, .stamps = {kStamp}, .sums = {UINT64_MAX}, .wanted = 3, .replace = true});
  EXPECT_EQ(put.stamps.at(0), kStamp);
  EXPECT_EQ(put.sums.at(0), UINT64_MAX);
  EXPECT_EQ(put.wanted, 3u);
  EXPECT_TRUE(put.replace);
  const auto open = Arrived(OpenWriteRequest{.key = "a", .size = 1, .stamp = kStamp, .wanted = 2, .replace = true});
  EXPECT_EQ(open.stamp, kStamp);
  EXPECT_EQ(open.wanted, 2u);
  EXPECT_TRUE(open.replace);
  const auto commit = Arrived(WindowRequest{.window = 1, .sum = 2, .has_sum = true});
  EXPECT_EQ(commit.sum, 2u);
  EXPECT_TRUE(commit.has_sum);
  EXPECT_EQ(Arrived(CloseWindowsRequest{.windows = {1, 2}}).windows, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(Arrived(CloseWindowsReply{.held = {true, false}}).held, (std::vector<bool>{true, false}));
  EXPECT_EQ(Arrived(InvalidateRequest{.keys = {"a"}, .stamps = {kStamp}}).stamps.at(0), kStamp);
  EXPECT_EQ(Arrived(RemoveByRegexRequest{.pattern = "^a.*"}).pattern, "^a.*");
  EXPECT_EQ(Arrived(ListKeysRequest{.after = "k", .limit = 5}).after, "k");
  const auto page = Arrived(ListKeysReply{.keys = {"k"}, .stamps = {kStamp}, .sizes = {7}});
  EXPECT_EQ(page.stamps.at(0), kStamp);
  EXPECT_EQ(page.sizes.at(0), 7u);
}

TEST(MessagesTest, WhatAnOlderPeerDoesNotSendHasTheOldMeaning) {
  EXPECT_FALSE(OfAnOldPeer<GetRequest>().windows);
  EXPECT_FALSE(OfAnOldPeer<ObjectState>().has_sum);
  EXPECT_TRUE(OfAnOldPeer<ObjectState>().stamp.none());
  EXPECT_FALSE(OfAnOldPeer<PutRequest>().replace);
  EXPECT_EQ(OfAnOldPeer<PutRequest>().wanted, 1u);
  EXPECT_FALSE(OfAnOldPeer<WindowRequest>().has_sum);
  EXPECT_EQ(OfAnOldPeer<KeyState>().wanted, 1u);
  EXPECT_FALSE(OfAnOldPeer<RegisterRequest>().resync);
  EXPECT_EQ(OfAnOldPeer<RegisterReply>().term, 0u);
  EXPECT_EQ(OfAnOldPeer<WriteRouteRequest>().replicas, 1u);
  EXPECT_EQ(OfAnOldPeer<WriteRouteRequest>().policy.max_candidates, 2u);
  EXPECT_TRUE(OfAnOldPeer<AnnounceReply>().superseded.empty());
}

TEST(MessagesTest, AStampThatIsNoneIsRefused) {
  const std::map<std::string, std::vector<int>> bad{{"stamp", {1, 2}}};
  EXPECT_EQ(rpc::Decode<Route>(rpc::Encode(bad)).error().code(), ErrorCode::INVALID_PARAMS);
}

TEST(KeyRecordsTest, StatesSurviveTheRoundTrip) {
  const std::vector<KeyState> sent{
      {.key = {UINT64_MAX, 1}, .present = true, .size = UINT64_MAX, .type = 1, .stamp = kStamp, .wanted = 2},
      {.key = {2, 3}, .present = false, .size = 0, .type = 3, .stamp = {.hlc = 5, .writer = 6}, .wanted = 1}};
  const std::string packed = PackKeyStates(sent);
  EXPECT_EQ(packed.size(), 2 * kKeyRecordBytes);
  const auto received = UnpackKeyStates(packed);
  ASSERT_TRUE(received);
  ASSERT_EQ(received->size(), sent.size());
  for (size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(rpc::Encode((*received)[i]), rpc::Encode(sent[i])) << i;
  EXPECT_TRUE(UnpackKeyStates({})->empty());
}

TEST(KeyRecordsTest, MoreOwnersThanARecordCanSayAreTheMostItCan) {
  EXPECT_EQ(UnpackKeyStates(PackKeyStates({{.wanted = 70000}}))->at(0).wanted, 65535u);
}

TEST(KeyRecordsTest, HalfARecordIsRefused) {
  const std::string packed = PackKeyStates({{}, {}});
  EXPECT_EQ(UnpackKeyStates(std::string_view(packed).substr(1)).error().code(), ErrorCode::INVALID_PARAMS);
}

TEST(MethodsTest, NumbersOfCallsNeverChange) {
  EXPECT_EQ(kRegister, 1);
  EXPECT_EQ(kListClients, 7);
  EXPECT_EQ(kReportPeer, 8);
  EXPECT_EQ(kRemoveKeys, 9);
  EXPECT_EQ(kRemoveFloor, 10);
  EXPECT_EQ(kPeerGet, 100);
  EXPECT_EQ(kPeerExist, 108);
  EXPECT_EQ(kPeerCloseWindows, 109);
  EXPECT_EQ(kPeerInvalidate, 110);
  EXPECT_EQ(kPeerRemoveByRegex, 111);
  EXPECT_EQ(kPeerListKeys, 112);
  EXPECT_EQ(kPeerProbe, 113);
  EXPECT_EQ(kWindowRead, 200);
  EXPECT_EQ(kHealth, 300);
  EXPECT_EQ(kEngineDescribe, 400);
}

}  // namespace
}  // namespace mooncake::protocol
