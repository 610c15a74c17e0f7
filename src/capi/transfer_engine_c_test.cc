// The C interface: transfers between two engines of this process, and every kind of wrong argument.
#include "capi/transfer_engine_c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kMiB = 1 << 20;

class TransferEngineCTest : public testing::Test {
 protected:
  void SetUp() override {
    source_ = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    target_ = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", nullptr, 0, 0);
    ASSERT_NE(source_, nullptr);
    ASSERT_NE(target_, nullptr);
    ASSERT_EQ(registerLocalMemory(target_, remote_.data(), remote_.size(), "*", 1), 0);
    segment_ = openSegment(source_, NameOf(target_).c_str());
    ASSERT_GE(segment_, 0);
  }
  void TearDown() override {
    destroyTransferEngine(source_);
    destroyTransferEngine(target_);
  }
  static std::string NameOf(transfer_engine_t engine) {
    char name[64] = "";
    EXPECT_EQ(getLocalIpAndPort(engine, name, sizeof(name)), 0);
    return name;
  }
  transfer_request Request(int opcode, size_t offset, size_t length) {
    return {opcode, local_.data() + offset, segment_, reinterpret_cast<uint64_t>(remote_.data()) + offset, length};
  }
  // Until no task is waiting.
  int EndOf(batch_id_t batch, size_t task) {
    transfer_status status{};
    do {
      EXPECT_EQ(getTransferStatus(source_, batch, task, &status), 0);
    } while (status.status == STATUS_WAITING);
    return status.status;
  }

  std::vector<char> local_ = std::vector<char>(2 * kMiB, 'l');
  std::vector<char> remote_ = std::vector<char>(2 * kMiB, 'r');
  transfer_engine_t source_ = nullptr;
  transfer_engine_t target_ = nullptr;
  segment_id_t segment_ = -1;
};

TEST_F(TransferEngineCTest, BatchOfTwoMovesItsBytes) {
  const batch_id_t batch = allocateBatchID(source_, 2);
  ASSERT_NE(batch, INVALID_BATCH);
  transfer_request requests[] = {Request(OPCODE_WRITE, 0, kMiB), Request(OPCODE_READ, kMiB, kMiB)};
  ASSERT_EQ(submitTransfer(source_, batch, requests, 2), 0);
  EXPECT_EQ(EndOf(batch, 0), STATUS_COMPLETED);
  EXPECT_EQ(EndOf(batch, 1), STATUS_COMPLETED);
  EXPECT_EQ(remote_[kMiB - 1], 'l');
  EXPECT_EQ(local_[kMiB], 'r');
  transfer_status status{};
  EXPECT_EQ(getBatchTransferStatus(source_, batch, &status), 0);
  EXPECT_EQ(status.status, STATUS_COMPLETED);
  EXPECT_EQ(status.transferred_bytes, 2 * kMiB);
  EXPECT_EQ(getTransferStatus(source_, batch, 2, &status), 1) << "there is no third task";
  EXPECT_EQ(freeBatchID(source_, batch), 0);
  EXPECT_EQ(freeBatchID(source_, batch), 1) << "it is free already";
}

TEST_F(TransferEngineCTest, SubmissionsAreAllOrNothing) {
  const batch_id_t batch = allocateBatchID(source_, 1);
  transfer_request requests[] = {Request(OPCODE_WRITE, 0, 8), Request(OPCODE_WRITE, 8, 8)};
  EXPECT_EQ(submitTransfer(source_, batch, requests, 2), 2);
  requests[0].target_id = segment_ + 1000;
  EXPECT_EQ(submitTransfer(source_, batch, requests, 1), 1);
  requests[0] = Request(OPCODE_WRITE, 2 * kMiB - 4, 8);
  EXPECT_EQ(submitTransfer(source_, batch, requests, 1), 3);
  requests[0] = Request(7, 0, 8);
  EXPECT_EQ(submitTransfer(source_, batch, requests, 1), 1);
  requests[0] = Request(OPCODE_READ, 0, 8);
  requests[0].source = nullptr;
  EXPECT_EQ(submitTransfer(source_, batch, requests, 1), 1);
  EXPECT_EQ(submitTransfer(source_, batch, nullptr, 1), 1);
  EXPECT_EQ(remote_[0], 'r');
  EXPECT_EQ(freeBatchID(source_, batch), 0);
}

TEST_F(TransferEngineCTest, NotificationsCarryNameAndText) {
  char name[] = "me";
  char text[] = "after the data";
  const batch_id_t batch = allocateBatchID(source_, 1);
  transfer_request request = Request(OPCODE_WRITE, 0, 100);
  ASSERT_EQ(submitTransferWithNotify(source_, batch, &request, 1, {name, text}), 0);
  ASSERT_EQ(EndOf(batch, 0), STATUS_COMPLETED);
  char second[] = "alone";
  ASSERT_EQ(genNotifyInEngine(source_, static_cast<uint64_t>(segment_), {name, second}), 0);
  std::vector<std::string> texts;
  while (texts.size() < 2) {
    int count = -1;
    notify_msg_t* const messages = getNotifsFromEngine(target_, &count);
    for (int i = 0; i < count; ++i) {
      EXPECT_STREQ(messages[i].name, "me");
      texts.emplace_back(messages[i].msg);
    }
    EXPECT_EQ(freeNotifsMsgBuf(messages, count), 0);
  }
  // A request has ended before its notification has arrived, so the other one may be first.
  std::sort(texts.begin(), texts.end());
  EXPECT_EQ(texts, (std::vector<std::string>{text, second}));
  EXPECT_EQ(remote_[99], 'l');
  int none = -1;
  EXPECT_EQ(getNotifsFromEngine(target_, &none), nullptr);
  EXPECT_EQ(none, 0);
  EXPECT_EQ(submitTransferWithNotify(source_, batch, &request, 1, {nullptr, text}), 1);
}

TEST_F(TransferEngineCTest, MemoryCallsHaveTheirNumbers) {
  EXPECT_EQ(registerLocalMemory(target_, remote_.data() + 1, 10, "*", 1), -7);
  EXPECT_EQ(registerLocalMemory(target_, remote_.data(), remote_.size(), "*", 1), 0) << "the same region is counted";
  EXPECT_EQ(unregisterLocalMemory(target_, remote_.data()), 0);
  EXPECT_EQ(unregisterLocalMemory(target_, remote_.data()), 0);
  EXPECT_EQ(unregisterLocalMemory(target_, remote_.data()), -3);
  EXPECT_EQ(registerLocalMemory(target_, nullptr, 10, "*", 1), -1);
  EXPECT_EQ(registerLocalMemory(target_, remote_.data(), 0, "*", 1), -1);
  EXPECT_EQ(registerLocalMemory(target_, remote_.data(), 10, "moon", 1), -1);
  buffer_entry_t buffers[] = {{remote_.data(), 100}, {remote_.data() + 200, 100}};
  EXPECT_EQ(registerLocalMemoryBatch(target_, buffers, 2, "cpu:0"), 0);
  void* addresses[] = {buffers[0].addr, buffers[1].addr};
  EXPECT_EQ(unregisterLocalMemoryBatch(target_, addresses, 2), 0);
  EXPECT_EQ(registerLocalMemoryBatch(target_, nullptr, 1, "*"), -1);
  EXPECT_EQ(unregisterLocalMemoryBatch(target_, nullptr, 1), -1);
}

TEST_F(TransferEngineCTest, LocalMemoryIsOutOfReachOfPeers) {
  std::vector<char> secret(4096, 's');
  ASSERT_EQ(registerLocalMemory(target_, secret.data(), secret.size(), "*", 0), 0);
  EXPECT_EQ(syncSegmentCache(source_), 0);
  const batch_id_t batch = allocateBatchID(source_, 1);
  transfer_request request = Request(OPCODE_READ, 0, 8);
  request.target_offset = reinterpret_cast<uint64_t>(secret.data());
  EXPECT_EQ(submitTransfer(source_, batch, &request, 1), 3);
}

TEST_F(TransferEngineCTest, UnregisteredWhileOpenFailsAsFailed) {
  const batch_id_t batch = allocateBatchID(source_, 1);
  ASSERT_EQ(unregisterLocalMemory(target_, remote_.data()), 0);
  transfer_request request = Request(OPCODE_WRITE, 0, 8);
  // Refused at once when the descriptor was asked for again, else by the target.
  if (submitTransfer(source_, batch, &request, 1) == 0) {
    EXPECT_EQ(EndOf(batch, 0), STATUS_FAILED);
  }
  EXPECT_EQ(remote_[0], 'r');
}

TEST_F(TransferEngineCTest, NullAndStaleEnginesFail) {
  int not_an_engine = 0;
  transfer_engine_t const gone = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
  ASSERT_NE(gone, nullptr);
  destroyTransferEngine(gone);
  for (transfer_engine_t engine : {transfer_engine_t{nullptr}, transfer_engine_t{&not_an_engine}, gone}) {
    char text[64];
    void* addresses[] = {text};
    transfer_request request = Request(OPCODE_READ, 0, 8);
    transfer_status status{};
    EXPECT_EQ(getLocalIpAndPort(engine, text, sizeof(text)), -1);
    EXPECT_EQ(discoverTopology(engine, text, sizeof(text)), -1);
    EXPECT_EQ(installTransport(engine, "tcp", nullptr), nullptr);
    EXPECT_EQ(uninstallTransport(engine, "tcp"), -1);
    EXPECT_LT(openSegment(engine, "127.0.0.1:1"), 0);
    EXPECT_LT(openSegmentNoCache(engine, "127.0.0.1:1"), 0);
    EXPECT_LT(closeSegment(engine, 0), 0);
    EXPECT_LT(removeLocalSegment(engine, "x"), 0);
    EXPECT_EQ(registerLocalMemory(engine, text, 1, "*", 1), -1);
    EXPECT_EQ(unregisterLocalMemory(engine, text), -1);
    EXPECT_EQ(registerLocalMemoryBatch(engine, nullptr, 0, "*"), -1);
    EXPECT_EQ(unregisterLocalMemoryBatch(engine, addresses, 1), -1);
    EXPECT_EQ(allocateBatchID(engine, 1), INVALID_BATCH);
    EXPECT_EQ(submitTransfer(engine, 0, &request, 1), 1);
    EXPECT_EQ(submitTransferWithNotify(engine, 0, &request, 1, {text, text}), 1);
    EXPECT_EQ(getTransferStatus(engine, 0, 0, &status), 1);
    EXPECT_EQ(getBatchTransferStatus(engine, 0, &status), 1);
    EXPECT_EQ(freeBatchID(engine, 0), 1);
    EXPECT_EQ(syncSegmentCache(engine), 1);
    int size = -1;
    EXPECT_EQ(getNotifsFromEngine(engine, &size), nullptr);
    EXPECT_EQ(size, 0);
    EXPECT_EQ(genNotifyInEngine(engine, 0, {text, text}), -1);
    destroyTransferEngine(engine);
  }
}

TEST_F(TransferEngineCTest, WrongArgumentsFail) {
  char tiny[2];
  EXPECT_EQ(getLocalIpAndPort(source_, tiny, sizeof(tiny)), -1);
  EXPECT_EQ(getLocalIpAndPort(source_, nullptr, 100), -1);
  EXPECT_LT(openSegment(source_, nullptr), 0);
  EXPECT_LT(openSegment(source_, "127.0.0.1:1"), 0) << "nobody is there";
  EXPECT_LT(openSegment(source_, "no such name"), 0);
  EXPECT_LT(closeSegment(source_, -5), 0);
  EXPECT_EQ(getTransferStatus(source_, 0, 0, nullptr), 1);
  EXPECT_EQ(freeBatchID(source_, INVALID_BATCH), 1);
  EXPECT_EQ(getNotifsFromEngine(source_, nullptr), nullptr);
  EXPECT_EQ(freeNotifsMsgBuf(nullptr, 3), 0);
  EXPECT_EQ(createTransferEngine("gopher://x", "127.0.0.1", "", 0, 1), nullptr);
  EXPECT_EQ(createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 65536, 1), nullptr);
}

TEST_F(TransferEngineCTest, TransportsAndTopologyCanBeAskedFor) {
  EXPECT_NE(installTransport(source_, "tcp", nullptr), nullptr);
  EXPECT_NE(installTransport(source_, "rdma", nullptr), nullptr) << "or tcp in its place";
  EXPECT_EQ(installTransport(source_, "smoke signals", nullptr), nullptr);
  EXPECT_EQ(installTransport(source_, nullptr, nullptr), nullptr);
  std::vector<char> topology(1 << 16);
  EXPECT_EQ(discoverTopology(source_, topology.data(), topology.size()), 0);
  EXPECT_EQ(topology[0], '{');
  void* args[] = {topology.data(), nullptr};
  EXPECT_NE(installTransport(source_, "tcp", args), nullptr);
  char wrong[] = "[";
  void* wrong_args[] = {wrong};
  EXPECT_EQ(installTransport(source_, "tcp", wrong_args), nullptr);
  EXPECT_EQ(uninstallTransport(source_, "tcp"), 0);
  EXPECT_EQ(removeLocalSegment(source_, NameOf(source_).c_str()), 0);
}

TEST_F(TransferEngineCTest, ManyThreadsShareAnEngine) {
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([this, thread] {
      for (int round = 0; round < 20; ++round) {
        const batch_id_t batch = allocateBatchID(source_, 1);
        transfer_request request = Request(OPCODE_WRITE, thread * 1000, 1000);
        ASSERT_EQ(submitTransfer(source_, batch, &request, 1), 0);
        ASSERT_EQ(EndOf(batch, 0), STATUS_COMPLETED);
        ASSERT_EQ(freeBatchID(source_, batch), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(remote_[3999], 'l');
}

}  // namespace
