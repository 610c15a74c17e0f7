// Windows belong to sessions.
#include "transfer_engine/window_table.h"

#include <gtest/gtest.h>

#include <thread>

namespace mooncake {
namespace {

constexpr rpc::SessionId kMine = 1, kOther = 2;

class WindowTableTest : public ::testing::Test {
 protected:
  WindowTable::Window Window(bool writable, size_t size = 100) {
    return {HostRange(memory_.data(), size), owner_, writable};
  }
  static ErrorCode CodeOf(const Result<WindowTable::Window>& found) {
    return found ? ErrorCode::OK : found.error().code();
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(100);
  std::shared_ptr<int> owner_ = std::make_shared<int>();
  WindowTable table_{3};
};

TEST_F(WindowTableTest, SessionFindsItsOwnWindowOnly) {
  const auto id = table_.Open(kMine, Window(false));
  ASSERT_TRUE(id);
  EXPECT_NE(*id, 0u);
  EXPECT_EQ(CodeOf(table_.Find(kMine, *id, 0, 100, false)), ErrorCode::OK);
  EXPECT_EQ(CodeOf(table_.Find(kOther, *id, 0, 100, false)), ErrorCode::INVALID_READ);
  EXPECT_EQ(CodeOf(table_.Find(kMine, *id + 1, 0, 100, false)), ErrorCode::INVALID_READ);
  EXPECT_FALSE(table_.Close(kOther, *id));
  table_.CloseSession(kOther);
  EXPECT_EQ(CodeOf(table_.Find(kMine, *id, 0, 100, false)), ErrorCode::OK);
  EXPECT_TRUE(table_.Close(kMine, *id));
  EXPECT_FALSE(table_.Close(kMine, *id));
  EXPECT_EQ(CodeOf(table_.Find(kMine, *id, 0, 100, false)), ErrorCode::INVALID_READ);
}

TEST_F(WindowTableTest, WriteToAReadWindowIsRefused) {
  const auto reading = table_.Open(kMine, Window(false));
  const auto writing = table_.Open(kMine, Window(true));
  EXPECT_EQ(CodeOf(table_.Find(kMine, *reading, 0, 1, true)), ErrorCode::INVALID_WRITE);
  EXPECT_EQ(CodeOf(table_.Find(kMine, *writing, 0, 1, true)), ErrorCode::OK);
}

TEST_F(WindowTableTest, RangesMustLieInside) {
  const auto id = table_.Open(kMine, Window(true));
  struct Case {
    uint64_t offset, size;
    bool fits;
  };
  for (const auto& [offset, size, fits] :
       {Case{0, 100, true}, Case{99, 1, true}, Case{100, 0, true}, Case{0, 101, false}, Case{100, 1, false},
        Case{101, 0, false}, Case{1, UINT64_MAX, false}, Case{UINT64_MAX, 1, false},
        Case{UINT64_MAX, UINT64_MAX, false}})
    EXPECT_EQ(CodeOf(table_.Find(kMine, *id, offset, size, true)), fits ? ErrorCode::OK : ErrorCode::INVALID_PARAMS)
        << offset << "+" << size;
}

TEST_F(WindowTableTest, EndOfASessionDropsItsMemory) {
  ASSERT_TRUE(table_.Open(kMine, Window(false)));
  ASSERT_TRUE(table_.Open(kMine, Window(true)));
  ASSERT_TRUE(table_.Open(kOther, Window(true)));
  EXPECT_EQ(owner_.use_count(), 4);
  table_.CloseSession(kMine);
  table_.CloseSession(kMine);
  EXPECT_EQ(owner_.use_count(), 2);
  EXPECT_EQ(table_.open_count(), 1u);
}

TEST_F(WindowTableTest, CopyOfAWindowOutlivesItsEnd) {
  const auto id = table_.Open(kMine, Window(false));
  auto copy = table_.Find(kMine, *id, 0, 1, false);
  table_.CloseSession(kMine);
  EXPECT_EQ(owner_.use_count(), 2);
  copy = Error(ErrorCode::OK, "let go");
  EXPECT_EQ(owner_.use_count(), 1);
}

TEST_F(WindowTableTest, SessionHasALimitOfItsOwn) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(table_.Open(kMine, Window(false)));
  const auto refused = table_.Open(kMine, Window(false));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::BUFFER_OVERFLOW);
  EXPECT_EQ(owner_.use_count(), 4);
  EXPECT_TRUE(table_.Open(kOther, Window(false)));
}

// Dropping memory may take locks of its own, even this table's.
TEST_F(WindowTableTest, MemoryIsDroppedOutsideTheTablesLock) {
  const auto reentrant = [this] {
    return std::shared_ptr<void>(nullptr, [this](void*) { (void)table_.open_count(); });
  };
  const auto id = table_.Open(kMine, {HostRange(memory_), reentrant(), false});
  EXPECT_TRUE(table_.Close(kMine, *id));
  ASSERT_TRUE(table_.Open(kMine, {HostRange(memory_), reentrant(), false}));
  table_.CloseSession(kMine);
  EXPECT_EQ(table_.open_count(), 0u);
}

}  // namespace
}  // namespace mooncake
