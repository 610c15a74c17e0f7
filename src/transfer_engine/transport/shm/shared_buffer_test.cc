// Shared buffers, and the identity of a host.
#include "transfer_engine/transport/shm/shared_buffer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "transfer_engine/transport/shm/host_id.h"

namespace mooncake {
namespace {

TEST(SharedBufferTest, IsAnotherMappingsMemory) {
  const auto buffer = SharedBuffer::Create({.bytes = 10'000, .populate = true});
  ASSERT_TRUE(buffer) << buffer.error().ToString();
  EXPECT_EQ((*buffer)->size(), 12'288u);
  EXPECT_GT((*buffer)->memfd(), STDERR_FILENO);
  EXPECT_EQ(fcntl((*buffer)->memfd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  std::memset((*buffer)->data(), 0x77, (*buffer)->size());
  void* const other = mmap(nullptr, (*buffer)->size(), PROT_READ, MAP_SHARED, (*buffer)->memfd(), 0);
  ASSERT_NE(other, MAP_FAILED);
  EXPECT_EQ(std::memcmp(other, (*buffer)->data(), (*buffer)->size()), 0);
  munmap(other, (*buffer)->size());
}

TEST(SharedBufferTest, ALargeOneCanLieOnHugePagesAndIsAllThere) {
  constexpr size_t kBytes = (size_t{9} << 20) + 8192;
  const auto buffer = SharedBuffer::Create({.bytes = kBytes, .populate = true});
  ASSERT_TRUE(buffer) << buffer.error().ToString();
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*buffer)->data()) % (size_t{2} << 20), 0u);
  std::vector<unsigned char> resident(kBytes / 4096);
  ASSERT_EQ(mincore((*buffer)->data(), kBytes, resident.data()), 0);
  EXPECT_TRUE(std::ranges::all_of(resident, [](unsigned char page) { return (page & 1) != 0; }));
  EXPECT_TRUE(std::ranges::all_of(std::span((*buffer)->data(), kBytes), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(SharedBufferTest, NobodyChangesItsSizeOrItsSeals) {
  const auto buffer = SharedBuffer::Create({.bytes = 8192});
  ASSERT_TRUE(buffer);
  for (const off_t size : {off_t{4096}, off_t{0}, off_t{16'384}}) EXPECT_NE(ftruncate((*buffer)->memfd(), size), 0);
  EXPECT_NE(fcntl((*buffer)->memfd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
}

TEST(SharedBufferTest, RefusesWhatCannotBe) {
  for (const size_t bytes : {size_t{0}, SIZE_MAX, SIZE_MAX / 2 + 1}) {
    const auto buffer = SharedBuffer::Create({.bytes = bytes});
    ASSERT_FALSE(buffer);
    EXPECT_EQ(buffer.error().code(), ErrorCode::INVALID_PARAMS);
  }
  const auto strange = SharedBuffer::Create({.bytes = 1, .huge_page_bytes = 4096});
  ASSERT_FALSE(strange);
  EXPECT_EQ(strange.error().code(), ErrorCode::INVALID_PARAMS);
}

TEST(SharedBufferTest, HugePagesAreThereOrRefused) {
  const auto buffer = SharedBuffer::Create({.bytes = 1, .huge_page_bytes = size_t{2} << 20, .populate = true});
  if (!buffer) {
    EXPECT_EQ(buffer.error().code(), ErrorCode::NO_AVAILABLE_HANDLE) << buffer.error().ToString();
    return;
  }
  EXPECT_EQ((*buffer)->size(), size_t{2} << 20);
  std::memset((*buffer)->data(), 1, (*buffer)->size());
}

TEST(HostIdTest, IsTheSameInAChildAndAnotherInItsOwnNetworkNamespace) {
  const std::string id = HostId();
  ASSERT_FALSE(id.empty());
  EXPECT_EQ(HostId(), id);
  const pid_t same = fork();
  if (same == 0) _exit(HostId() == id ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(same, &status, 0), same);
  EXPECT_EQ(status, 0);
  const pid_t apart = fork();
  if (apart == 0) {
    if (unshare(CLONE_NEWNET) != 0) _exit(2);
    _exit(HostId() != id ? 0 : 1);
  }
  ASSERT_EQ(waitpid(apart, &status, 0), apart);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) GTEST_SKIP() << "no right to make a network namespace";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace mooncake
