// Life of keys and handles: what a backend promises while nothing has to leave.
#include "tiered_cache/tiered_backend.h"

#include <gmock/gmock.h>

#include <set>

#include "tiered_cache/test_backend_fixture.h"

namespace mooncake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class TieredBackendTest : public BackendFixture {
 protected:
  void SetUp() override {
    OpenBackend(10'000, 100'000,
                {.shard_count = 4, .on_change = [this](std::string_view key) { changed_.emplace_back(key); }});
  }
  size_t UsageOfAll() const { return top_->usage() + low_->usage(); }
  std::vector<std::string> TakeChanged() { return std::exchange(changed_, {}); }

  std::vector<std::string> changed_;
};

// --- opening ---

TEST_F(TieredBackendTest, NeedsOneToThirtyTwoTiersAndAShard) {
  EXPECT_EQ(CodeOf(TieredBackend::Open({}, {})), ErrorCode::INVALID_PARAMS);
  std::vector<std::shared_ptr<CacheTier>> many;
  for (size_t i = 0; i < kMaxTiers; ++i) many.push_back(std::make_shared<HeapTier>("t", 100, 0));
  EXPECT_TRUE(TieredBackend::Open(many, {}));
  many.push_back(std::make_shared<HeapTier>("t", 100, 0));
  const auto too_many = TieredBackend::Open(many, {});
  ASSERT_FALSE(too_many);
  EXPECT_EQ(too_many.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_THAT(too_many.error().message(), HasSubstr("33"));
  EXPECT_EQ(CodeOf(TieredBackend::Open({top_}, {.shard_count = 0, .on_change = {}})), ErrorCode::INVALID_PARAMS);
}

TEST_F(TieredBackendTest, TierOfAKindWithoutCopiersIsRefusedByName) {
  class DiskTier final : public CacheTier {
   public:
    DiskTier() : CacheTier({Uuid::Random(), "disk", MemoryType::NVME, 100, 0, {}}) {}
    Result<DataSource> Allocate(size_t) override { return Error(ErrorCode::INTERNAL_ERROR, "never asked"); }
    size_t usage() const override { return 0; }
  };
  const auto backend = TieredBackend::Open({std::make_shared<DiskTier>()}, {});
  ASSERT_FALSE(backend);
  EXPECT_EQ(backend.error().code(), ErrorCode::INTERNAL_ERROR);
  EXPECT_THAT(backend.error().message(), HasSubstr("disk"));
  EXPECT_THAT(backend.error().message(), HasSubstr("NVME"));
}

TEST_F(TieredBackendTest, LastOfThirtyTwoTiersWorksLikeTheOthers) {
  std::vector<std::shared_ptr<CacheTier>> many;
  for (size_t i = 0; i < kMaxTiers; ++i) {
    many.push_back(std::make_shared<HeapTier>("t", 100, static_cast<int32_t>(kMaxTiers - i)));
  }
  const Uuid last = many.back()->info().id;
  backend_ = *TieredBackend::Open(many, {});
  ASSERT_TRUE(Put("k", ContentOf("k", 100), last));
  EXPECT_TRUE(backend_->Exist("k", last));
  ASSERT_TRUE(Put("l", ContentOf("l", 100), last)) << "the oldest makes room there as well";
  EXPECT_FALSE(backend_->Exist("k"));
  EXPECT_EQ(backend_->GetTierViews().back().dropped, 1u);
}

TEST_F(TieredBackendTest, EqualPrioritiesKeepTheOrderGiven) {
  const auto first = std::make_shared<HeapTier>("first", 100, 1);
  const auto second = std::make_shared<HeapTier>("second", 100, 1);
  const auto fast = std::make_shared<HeapTier>("fast", 100, 2);
  const auto backend = TieredBackend::Open({first, second, fast}, {});
  ASSERT_TRUE(backend);
  std::vector<std::string> names;
  for (const TierView& view : (*backend)->GetTierViews()) names.push_back(view.name);
  EXPECT_THAT(names, ElementsAre("fast", "first", "second"));
}

// --- put, get, delete ---

TEST_F(TieredBackendTest, PutGetDelete) {
  const Bytes content = ContentOf("k", 1234);
  const auto version = Put("k", content);
  ASSERT_TRUE(version) << version.error().ToString();
  EXPECT_TRUE(backend_->Exist("k"));
  EXPECT_EQ(backend_->KeyCount(), 1u);
  const auto view = backend_->Get("k");
  ASSERT_TRUE(view);
  EXPECT_EQ(view->version, *version);
  EXPECT_EQ(Read(view->handle), content);
  EXPECT_EQ(top_->usage(), 1234u);
  ASSERT_TRUE(backend_->Delete("k"));
  EXPECT_FALSE(backend_->Exist("k"));
  EXPECT_EQ(CodeOf(backend_->Get("k")), ErrorCode::OBJECT_NOT_FOUND);
  EXPECT_EQ(CodeOf(backend_->Delete("k")), ErrorCode::OBJECT_NOT_FOUND);
  EXPECT_EQ(backend_->KeyCount(), 0u);
}

TEST_F(TieredBackendTest, BlockIsInvisibleUntilItIsCommitted) {
  auto handle = Written(ContentOf("k", 500));
  ASSERT_TRUE(handle);
  EXPECT_FALSE(backend_->Exist("k"));
  EXPECT_EQ(top_->usage(), 500u);
  handle->reset();
  EXPECT_EQ(top_->usage(), 0u) << "dropped before Commit: the memory is back";
}

TEST_F(TieredBackendTest, HandleKeepsTheBytesAfterDeleteAndSpaceReturnsOnceWithTheLast) {
  const Bytes content = ContentOf("k", 700);
  ASSERT_TRUE(Put("k", content));
  auto first = backend_->Get("k")->handle;
  auto second = backend_->Get("k")->handle;
  int freed = 0;
  top_->on_free = [&](auto) { ++freed; };
  ASSERT_TRUE(backend_->Delete("k"));
  EXPECT_EQ(Read(first), content);
  EXPECT_EQ(top_->usage(), 700u);
  first.reset();
  EXPECT_EQ(Read(second), content);
  EXPECT_EQ(top_->usage(), 700u);
  EXPECT_EQ(freed, 0);
  second.reset();
  EXPECT_EQ(top_->usage(), 0u);
  EXPECT_EQ(freed, 1);
}

TEST_F(TieredBackendTest, HandleOutlivesTheBackend) {
  const Bytes content = ContentOf("k", 700);
  ASSERT_TRUE(Put("k", content));
  AllocationHandle handle = backend_->Get("k")->handle;
  const DataCopier copier = backend_->copier();
  backend_.reset();
  std::weak_ptr<HeapTier> tier = top_;
  top_.reset();
  Bytes read(700);
  ASSERT_TRUE(copier.Copy(handle->data, DataSource::Host(read.data(), read.size())));
  EXPECT_EQ(read, content);
  EXPECT_FALSE(tier.expired());
  handle.reset();
  EXPECT_TRUE(tier.expired());
}

TEST_F(TieredBackendTest, EmptyValueIsAValue) {
  ASSERT_TRUE(Put("empty", {}));
  EXPECT_TRUE(backend_->Exist("empty"));
  EXPECT_TRUE(backend_->Exist("empty", top()));
  EXPECT_EQ(GetBytes("empty"), Bytes{});
  EXPECT_EQ(UsageOfAll(), 0u);
  ASSERT_TRUE(backend_->Transfer("empty", top(), low()));
  EXPECT_EQ(GetBytes("empty", low()), Bytes{});
  ASSERT_TRUE(Put("empty", ContentOf("x", 10))) << "replaced by bytes";
  EXPECT_EQ(GetBytes("empty"), ContentOf("x", 10));
  ASSERT_TRUE(Put("empty", {})) << "and back";
  EXPECT_EQ(GetBytes("empty"), Bytes{});
  EXPECT_EQ(UsageOfAll(), 0u);
  EXPECT_TRUE(backend_->Delete("empty"));
}

TEST_F(TieredBackendTest, AnyBytesMayBeAKey) {
  const std::string odd("\0\n\xFF key", 8);
  ASSERT_TRUE(Put(odd, ContentOf("odd", 10)));
  ASSERT_TRUE(Put("", ContentOf("none", 10)));
  EXPECT_EQ(GetBytes(odd), ContentOf("odd", 10));
  EXPECT_EQ(GetBytes(""), ContentOf("none", 10));
}

TEST_F(TieredBackendTest, NullHandlesAreRefused) {
  std::byte byte{};
  EXPECT_EQ(CodeOf(backend_->Commit("k", nullptr)), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(CodeOf(backend_->Write(DataSource::Host(&byte, 1), nullptr)), ErrorCode::INVALID_PARAMS);
}

TEST_F(TieredBackendTest, WritingMoreThanTheBlockHoldsIsRefused) {
  const auto handle = backend_->Allocate(10);
  ASSERT_TRUE(handle);
  const Bytes large(11);
  EXPECT_EQ(CodeOf(backend_->Write(DataSource::Host(large.data(), large.size()), *handle)), ErrorCode::BUFFER_OVERFLOW);
}

// --- commit ---

TEST_F(TieredBackendTest, ReplacingDropsTheOldReplicasOfEveryTier) {
  const auto old_version = Put("k", ContentOf("k", 100, 1));
  ASSERT_TRUE(old_version);
  ASSERT_TRUE(backend_->Transfer("k", top(), low()));
  ASSERT_EQ(UsageOfAll(), 200u);
  const auto new_version = Put("k", ContentOf("k", 300, 2), low());
  ASSERT_TRUE(new_version);
  EXPECT_NE(*new_version, *old_version);
  EXPECT_EQ(top_->usage(), 0u);
  EXPECT_EQ(low_->usage(), 300u);
  EXPECT_THAT(backend_->GetReplicaTierIds("k"), ElementsAre(low()));
  EXPECT_EQ(GetBytes("k"), ContentOf("k", 300, 2));
  EXPECT_EQ(backend_->KeyCount(), 1u);
}

TEST_F(TieredBackendTest, ReaderOfReplacedContentStillSeesTheOldOne) {
  ASSERT_TRUE(Put("k", ContentOf("k", 100, 1)));
  const auto old = backend_->Get("k")->handle;
  ASSERT_TRUE(Put("k", ContentOf("k", 100, 2)));
  EXPECT_EQ(Read(old), ContentOf("k", 100, 1));
  EXPECT_EQ(GetBytes("k"), ContentOf("k", 100, 2));
}

TEST_F(TieredBackendTest, OnlyIfAbsentKeepsWhatIsThere) {
  ASSERT_TRUE(Put("k", ContentOf("k", 100, 1), {}, {.expected_version = {}, .only_if_absent = true}));
  TakeChanged();
  const auto second = Put("k", ContentOf("k", 100, 2), {}, {.expected_version = {}, .only_if_absent = true});
  EXPECT_EQ(CodeOf(second), ErrorCode::OBJECT_ALREADY_EXISTS);
  EXPECT_EQ(GetBytes("k"), ContentOf("k", 100, 1));
  EXPECT_EQ(top_->usage(), 100u) << "the refused block is gone";
  EXPECT_THAT(TakeChanged(), IsEmpty());
}

TEST_F(TieredBackendTest, VersionsAreNeverUsedAgain) {
  std::set<uint64_t> versions;
  for (int i = 0; i < 100; ++i) {
    versions.insert(*Put("k", ContentOf("k", 10)));
    if (i % 3 == 0) {
      ASSERT_TRUE(backend_->Delete("k"));
    }
    versions.insert(*Put("other", ContentOf("other", 10)));
  }
  EXPECT_EQ(versions.size(), 200u);
}

TEST_F(TieredBackendTest, CommitUnderAnotherVersionHasNoEffect) {
  const auto version = Put("k", ContentOf("k", 100, 1));
  ASSERT_TRUE(version);
  TakeChanged();
  for (const uint64_t wrong : {*version + 1, *version - 1, uint64_t{0}}) {
    const auto refused = Put("k", ContentOf("k", 50, 2), low(), {.expected_version = wrong});
    ASSERT_EQ(CodeOf(refused), ErrorCode::CAS_FAILED);
    EXPECT_THAT(refused.error().message(), HasSubstr("'k'"));
  }
  EXPECT_EQ(CodeOf(Put("absent", ContentOf("a", 50), low(), {.expected_version = 0})), ErrorCode::CAS_FAILED);
  EXPECT_FALSE(backend_->Exist("absent"));
  EXPECT_THAT(TakeChanged(), IsEmpty());
  EXPECT_EQ(backend_->Get("k")->version, *version);
  EXPECT_THAT(backend_->GetReplicaTierIds("k"), ElementsAre(top()));
  EXPECT_EQ(GetBytes("k"), ContentOf("k", 100, 1));
  EXPECT_EQ(low_->usage(), 0u);
}

TEST_F(TieredBackendTest, CommitUnderTheRightVersionAddsAReplicaOfTheSameContent) {
  const auto version = Put("k", ContentOf("k", 100));
  const auto added = Put("k", ContentOf("k", 100), low(), {.expected_version = *version});
  ASSERT_TRUE(added);
  EXPECT_EQ(*added, *version);
  EXPECT_THAT(backend_->GetReplicaTierIds("k"), ElementsAre(top(), low()));
  ASSERT_TRUE(Put("k", ContentOf("k", 100), low(), {.expected_version = *version})) << "takes the older one's place";
  EXPECT_EQ(low_->usage(), 100u);
}

// --- get, exist and delete of one tier ---

TEST_F(TieredBackendTest, ReplicasAreSeenTierByTier) {
  ASSERT_TRUE(Put("k", ContentOf("k", 100)));
  EXPECT_TRUE(backend_->Exist("k", top()));
  EXPECT_FALSE(backend_->Exist("k", low()));
  EXPECT_FALSE(backend_->Exist("k", Uuid::Random()));
  EXPECT_FALSE(backend_->Exist("absent", top()));
  const auto not_there = backend_->Get("k", low());
  ASSERT_FALSE(not_there);
  EXPECT_EQ(not_there.error().code(), ErrorCode::TIER_NOT_FOUND);
  ASSERT_TRUE(backend_->Transfer("k", top(), low()));
  EXPECT_EQ(backend_->Get("k", low())->handle->tier, low_);
  EXPECT_EQ(backend_->Get("k", top())->handle->tier, top_);
  EXPECT_EQ(backend_->Get("k")->handle->tier, top_) << "the highest one";
}

TEST_F(TieredBackendTest, DeletingOneReplicaLeavesTheOther) {
  ASSERT_TRUE(Put("k", ContentOf("k", 100)));
  ASSERT_TRUE(backend_->Transfer("k", top(), low()));
  ASSERT_TRUE(backend_->Delete("k", top()));
  EXPECT_EQ(top_->usage(), 0u);
  EXPECT_THAT(backend_->GetReplicaTierIds("k"), ElementsAre(low()));
  EXPECT_EQ(GetBytes("k"), ContentOf("k", 100));
  EXPECT_EQ(CodeOf(backend_->Delete("k", top())), ErrorCode::TIER_NOT_FOUND);
  ASSERT_TRUE(backend_->Delete("k", low())) << "the last one takes the key with it";
  EXPECT_FALSE(backend_->Exist("k"));
  EXPECT_EQ(backend_->KeyCount(), 0u);
  EXPECT_EQ(UsageOfAll(), 0u);
  EXPECT_EQ(CodeOf(backend_->Delete("k", low())), ErrorCode::OBJECT_NOT_FOUND);
}

TEST_F(TieredBackendTest, UnknownTierIsAnErrorEverywhere) {
  ASSERT_TRUE(Put("k", ContentOf("k", 100)));
  const Uuid unknown = Uuid::Random();
  const Bytes bytes = ContentOf("k", 10);
  const DataSource source = DataSource::Host(bytes.data(), bytes.size());
  EXPECT_EQ(CodeOf(backend_->Allocate(10, unknown)), ErrorCode::TIER_NOT_FOUND);
  EXPECT_EQ(CodeOf(backend_->Allocate(0, unknown)), ErrorCode::TIER_NOT_FOUND);
  EXPECT_EQ(CodeOf(backend_->Get("k", unknown)), ErrorCode::TIER_NOT_FOUND);
  EXPECT_EQ(CodeOf(backend_->Delete("k", unknown)), ErrorCode::TIER_NOT_FOUND);
  EXPECT_EQ(CodeOf(backend_->Transfer("k", unknown, low())), ErrorCode::TIER_NOT_FOUND);
  EXPECT_EQ(CodeOf(backend_->Transfer("k", top(), unknown)), ErrorCode::TIER_NOT_FOUND);
  EXPECT_EQ(CodeOf(backend_->CopyData("k", source, unknown, 1)), ErrorCode::TIER_NOT_FOUND);
  EXPECT_EQ(UsageOfAll(), 100u);
}

// --- transfer and copy ---

TEST_F(TieredBackendTest, TransferKeepsTheSourceAndTheVersion) {
  const auto version = Put("k", ContentOf("k", 100));
  ASSERT_TRUE(backend_->Transfer("k", top(), low()));
  EXPECT_THAT(backend_->GetReplicaTierIds("k"), ElementsAre(top(), low()));
  EXPECT_EQ(GetBytes("k", top()), ContentOf("k", 100));
  EXPECT_EQ(GetBytes("k", low()), ContentOf("k", 100));
  EXPECT_EQ(backend_->Get("k", low())->version, *version);
}

TEST_F(TieredBackendTest, TransferOfWhatIsNotThereIsAnError) {
  EXPECT_EQ(CodeOf(backend_->Transfer("absent", top(), low())), ErrorCode::OBJECT_NOT_FOUND);
  ASSERT_TRUE(Put("k", ContentOf("k", 100)));
  EXPECT_EQ(CodeOf(backend_->Transfer("k", low(), top())), ErrorCode::TIER_NOT_FOUND);
}

TEST_F(TieredBackendTest, TransferToAFullTierIsRefusedAndDropsNothing) {
  ASSERT_TRUE(Put("k", ContentOf("k", 9'000), top()));
  ASSERT_TRUE(Put("l", ContentOf("l", 2'000), low()));
  const auto refused = backend_->Transfer("l", low(), top());
  EXPECT_EQ(CodeOf(refused), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_TRUE(backend_->Exist("k", top()));
}

// The hook runs between reading the source and copying it: the moment where the key may change.
TEST_F(TieredBackendTest, TransferFailsWhenTheKeyIsReplacedMeanwhile) {
  ASSERT_TRUE(Put("k", ContentOf("k", 100, 1)));
  low_->before_allocate = [&] {
    low_->before_allocate = nullptr;
    ASSERT_TRUE(Put("k", ContentOf("k", 100, 2)));
  };
  EXPECT_EQ(CodeOf(backend_->Transfer("k", top(), low())), ErrorCode::CAS_FAILED);
  EXPECT_THAT(backend_->GetReplicaTierIds("k"), ElementsAre(top()));
  EXPECT_EQ(GetBytes("k"), ContentOf("k", 100, 2));
  EXPECT_EQ(low_->usage(), 0u);
}

TEST_F(TieredBackendTest, DeleteDuringACopyLeavesTheCopyValidMemoryAndFailsItsCommit) {
  const Bytes content = ContentOf("k", 100);
  ASSERT_TRUE(Put("k", content));
  low_->before_allocate = [&] { ASSERT_TRUE(backend_->Delete("k")); };
  Bytes copied;
  low_->on_free = [&](std::span<const std::byte> bytes) { copied.assign(bytes.begin(), bytes.end()); };
  EXPECT_EQ(CodeOf(backend_->Transfer("k", top(), low())), ErrorCode::CAS_FAILED);
  EXPECT_EQ(copied, content) << "the copy read the deleted block while it was still there";
  EXPECT_FALSE(backend_->Exist("k"));
  EXPECT_EQ(UsageOfAll(), 0u);
}

TEST_F(TieredBackendTest, DeletedAndPutAgainIsAnotherContent) {
  ASSERT_TRUE(Put("k", ContentOf("k", 100, 1)));
  low_->before_allocate = [&] {
    low_->before_allocate = nullptr;
    ASSERT_TRUE(backend_->Delete("k"));
    ASSERT_TRUE(Put("k", ContentOf("k", 100, 1)));
  };
  EXPECT_EQ(CodeOf(backend_->Transfer("k", top(), low())), ErrorCode::CAS_FAILED);
}

TEST_F(TieredBackendTest, CopyDataAddsAReplicaUnderTheVersion) {
  const Bytes content = ContentOf("k", 100);
  const auto version = Put("k", content);
  const DataSource source = DataSource::Host(content.data(), content.size());
  ASSERT_TRUE(backend_->CopyData("k", source, low(), *version));
  EXPECT_EQ(GetBytes("k", low()), content);
  EXPECT_EQ(CodeOf(backend_->CopyData("k", source, low(), *version + 1)), ErrorCode::CAS_FAILED);
  EXPECT_EQ(CodeOf(backend_->CopyData("absent", source, low(), *version)), ErrorCode::CAS_FAILED);
  EXPECT_EQ(UsageOfAll(), 200u);
}

// --- allocation choice ---

TEST_F(TieredBackendTest, HighestTierComesFirstUnlessAnotherIsPreferred) {
  EXPECT_EQ((*backend_->Allocate(100))->tier, top_);
  EXPECT_EQ((*backend_->Allocate(100, low()))->tier, low_);
  EXPECT_EQ((*backend_->Allocate(100, low(), /*strict=*/true))->tier, low_);
  EXPECT_EQ((*backend_->Allocate(0))->tier, top_);
  EXPECT_EQ((*backend_->Allocate(0, low()))->tier, low_);
}

TEST_F(TieredBackendTest, PreferredTierThatIsFullGivesWayUnlessStrict) {
  const auto held = backend_->Allocate(100'000, low());
  ASSERT_TRUE(held);
  const auto preferred = backend_->Allocate(100, low());
  ASSERT_TRUE(preferred);
  EXPECT_EQ((*preferred)->tier, top_);
  const auto strict = backend_->Allocate(100, low(), /*strict=*/true);
  ASSERT_FALSE(strict);
  EXPECT_EQ(strict.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_THAT(strict.error().message(), HasSubstr("used 100000 of 100000"));
  EXPECT_THAT(strict.error().message(), Not(HasSubstr("top"))) << "the other tier was not asked";
}

TEST_F(TieredBackendTest, BlockLargerThanTheTopTierGoesLowerAndNothingLeaves) {
  ASSERT_TRUE(Put("k", ContentOf("k", 9'000)));
  const auto handle = backend_->Allocate(10'001);
  ASSERT_TRUE(handle);
  EXPECT_EQ((*handle)->tier, low_);
  EXPECT_TRUE(backend_->Exist("k", top()));
}

TEST_F(TieredBackendTest, BlockLargerThanEveryTierIsRefusedWithTheNumbersOfEach) {
  ASSERT_TRUE(Put("k", ContentOf("k", 1'000)));
  const auto refused = backend_->Allocate(100'001);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_THAT(refused.error().message(), HasSubstr("no room for 100001 B"));
  EXPECT_THAT(refused.error().message(), HasSubstr("tier top cannot hold 100001 B (used 1000 of 10000 B)"));
  EXPECT_THAT(refused.error().message(), HasSubstr("tier low cannot hold 100001 B (used 0 of 100000 B)"));
  EXPECT_TRUE(backend_->Exist("k")) << "a hopeless request lets nothing go";
}

TEST_F(TieredBackendTest, DeviceOutOfMemorySpillsToTheNextTierAtOnce) {
  ASSERT_TRUE(Put("k", ContentOf("k", 1'000)));
  top_->Refuse(Status(ErrorCode::NO_AVAILABLE_HANDLE, "device full", 207001));
  const uint64_t asked = top_->allocate_calls();
  const auto handle = backend_->Allocate(100);
  ASSERT_TRUE(handle);
  EXPECT_EQ((*handle)->tier, low_);
  EXPECT_EQ(top_->allocate_calls(), asked + 1);
  EXPECT_TRUE(backend_->Exist("k", top())) << "no block of ours had to leave";
}

TEST_F(TieredBackendTest, DeviceErrorSpillsToo) {
  top_->Refuse(Status(ErrorCode::INTERNAL_ERROR, "device lost", 507010));
  const auto handle = backend_->Allocate(100);
  ASSERT_TRUE(handle);
  EXPECT_EQ((*handle)->tier, low_);
}

TEST_F(TieredBackendTest, DeviceErrorIsTheResultWhenNoTierCanServe) {
  top_->Refuse(Status(ErrorCode::INTERNAL_ERROR, "device lost", 507010));
  const auto refused = backend_->Allocate(100'001);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::INTERNAL_ERROR);
  EXPECT_EQ(refused.error().vendor_code(), 507010);
}

// --- stop ---

TEST_F(TieredBackendTest, AfterStopEverythingAnswersShuttingDown) {
  const Bytes content = ContentOf("k", 100);
  const auto version = Put("k", content);
  auto handle = Written(content);
  const auto held = backend_->Get("k");
  TakeChanged();
  backend_->Stop();
  backend_->Stop();
  const DataSource source = DataSource::Host(content.data(), content.size());
  EXPECT_EQ(CodeOf(backend_->Allocate(10)), ErrorCode::SHUTTING_DOWN);
  EXPECT_EQ(CodeOf(backend_->Allocate(0)), ErrorCode::SHUTTING_DOWN);
  EXPECT_EQ(CodeOf(backend_->Write(source, *handle)), ErrorCode::SHUTTING_DOWN);
  EXPECT_EQ(CodeOf(backend_->Commit("k", *handle)), ErrorCode::SHUTTING_DOWN);
  EXPECT_EQ(CodeOf(backend_->Get("k")), ErrorCode::SHUTTING_DOWN);
  EXPECT_EQ(CodeOf(backend_->Delete("k")), ErrorCode::SHUTTING_DOWN);
  EXPECT_EQ(CodeOf(backend_->CopyData("k", source, low(), *version)), ErrorCode::SHUTTING_DOWN);
  EXPECT_EQ(CodeOf(backend_->Transfer("k", top(), low())), ErrorCode::SHUTTING_DOWN);
  EXPECT_FALSE(backend_->Exist("k"));
  EXPECT_THAT(TakeChanged(), IsEmpty());
  EXPECT_EQ(Read(held->handle), content) << "what somebody holds stays";
}

// --- many keys ---

TEST_F(TieredBackendTest, RemoveAllRemovesEveryKeyOnce) {
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Put(std::to_string(i), ContentOf("v", 20)));
  ASSERT_TRUE(backend_->Transfer("7", top(), low()));
  const auto held = backend_->Get("9")->handle;
  TakeChanged();
  EXPECT_EQ(backend_->RemoveAll(), 50u);
  EXPECT_EQ(backend_->KeyCount(), 0u);
  EXPECT_EQ(UsageOfAll(), 20u) << "the block somebody holds";
  EXPECT_EQ(Read(held), ContentOf("v", 20));
  const auto changed = TakeChanged();
  EXPECT_EQ(std::set<std::string>(changed.begin(), changed.end()).size(), 50u);
  EXPECT_EQ(changed.size(), 50u);
  EXPECT_EQ(backend_->RemoveAll(), 0u);
  ASSERT_TRUE(Put("7", ContentOf("v", 20)));
  for (const TierView& view : backend_->GetTierViews()) EXPECT_EQ(view.keys, view.id == top() ? 1u : 0u);
}

TEST_F(TieredBackendTest, ForEachKeyVisitsEveryKeyOnceAndMayCallBack) {
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(Put(std::to_string(i), ContentOf("v", 20)));
  std::vector<std::string> seen;
  backend_->ForEachKey([&](const std::string& key) {
    EXPECT_TRUE(backend_->Delete(key));
    seen.push_back(key);
  });
  EXPECT_EQ(seen.size(), 30u);
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 30u);
  EXPECT_EQ(backend_->KeyCount(), 0u);
}

TEST_F(TieredBackendTest, ViewsShowWhatEachTierHoldsAndDid) {
  ASSERT_TRUE(Put("a", ContentOf("a", 100)));
  ASSERT_TRUE(Put("b", ContentOf("b", 200), low()));
  ASSERT_TRUE(backend_->Transfer("b", low(), top()));
  ASSERT_TRUE(backend_->Get("a"));
  ASSERT_TRUE(backend_->Get("b"));
  ASSERT_TRUE(backend_->Get("b", low()));
  ASSERT_TRUE(backend_->Get("b", low(), /*record_access=*/false));
  EXPECT_FALSE(backend_->Get("absent"));
  const auto views = backend_->GetTierViews();
  ASSERT_EQ(views.size(), 2u);
  EXPECT_EQ(views[0].id, top());
  EXPECT_EQ(views[0].name, "top");
  EXPECT_EQ(views[0].type, MemoryType::DRAM);
  EXPECT_EQ(views[0].priority, 10);
  EXPECT_EQ(views[0].capacity, 10'000u);
  EXPECT_EQ(views[0].usage, 300u);
  EXPECT_EQ(views[0].free_space, 9'700u);
  EXPECT_EQ(views[0].keys, 2u);
  EXPECT_EQ(views[0].hits, 2u);
  EXPECT_EQ(views[1].usage, 200u);
  EXPECT_EQ(views[1].keys, 1u);
  EXPECT_EQ(views[1].hits, 1u);
  EXPECT_EQ(views[1].demoted_out + views[1].dropped, 0u);
  EXPECT_EQ(backend_->GetDramTierId(), top());
}

// --- listener ---

TEST_F(TieredBackendTest, ListenerHearsOfCommitTransferAndDelete) {
  ASSERT_TRUE(Put("k", ContentOf("k", 100)));
  EXPECT_THAT(TakeChanged(), ElementsAre("k"));
  ASSERT_TRUE(Put("k", ContentOf("k", 100, 2)));
  EXPECT_THAT(TakeChanged(), ElementsAre("k"));
  ASSERT_TRUE(backend_->Transfer("k", top(), low()));
  EXPECT_THAT(TakeChanged(), ElementsAre("k"));
  ASSERT_TRUE(backend_->Delete("k", top()));
  EXPECT_THAT(TakeChanged(), ElementsAre("k"));
  ASSERT_TRUE(backend_->Delete("k"));
  EXPECT_THAT(TakeChanged(), ElementsAre("k"));
  EXPECT_FALSE(backend_->Delete("k"));
  EXPECT_FALSE(backend_->Get("k"));
  EXPECT_THAT(TakeChanged(), IsEmpty());
}

}  // namespace
}  // namespace mooncake
