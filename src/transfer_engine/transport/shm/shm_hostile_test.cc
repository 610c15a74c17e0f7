// Strangers on the socket: garbage, lies, wrong files, other users.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "transfer_engine/transport/shm/test_shm_pair.h"

namespace mooncake {
namespace {

using shm::Kind;
using shm::Message;
using shm::Socket;

constexpr auto kRead = TransferOpcode::kRead;

// Waits for the next message or the end.
Socket::Received Await(const Socket& socket, Message& message, Fd& fd) {
  for (;;) {
    const Socket::Received received = socket.Receive(message, fd);
    if (received != Socket::Received::kNothing) return received;
    pollfd readable{socket.fd(), POLLIN, 0};
    if (poll(&readable, 1, 60'000) <= 0) {
      ADD_FAILURE() << "nothing came";
      return received;
    }
  }
}

Message Make(Kind kind, uint64_t id = 0) {
  Message message;
  message.kind = kind;
  message.id = id;
  return message;
}

Message Hello(const Uuid& expected) {
  Message hello = Make(Kind::kHello);
  hello.sender = Uuid::Random();
  hello.expected = expected;
  return hello;
}

class HostileAskerTest : public ::testing::Test {
 protected:
  HostileAskerTest() { region_ = owner_.Register(*buffer_); }
  std::shared_ptr<Socket> Connect() {
    auto socket = shm::ConnectTo(owner_.Describe()->shm_socket);
    EXPECT_TRUE(socket) << socket.error().ToString();
    return *socket;
  }
  // The owner closes this connection, and goes on.
  void ExpectClosed(const Socket& socket) {
    Message message;
    Fd fd;
    EXPECT_EQ(Await(socket, message, fd), Socket::Received::kClosed);
    ShmNode asker;
    Bytes local(1);
    EXPECT_TRUE(Do(*asker.transport, kRead, HostRange(local), owner_.Describe(), AddressOf(*buffer_)));
  }

  std::unique_ptr<SharedBuffer> buffer_ = MakeShared(4096);
  ShmNode owner_;
  std::shared_ptr<Region> region_;
};

TEST_F(HostileAskerTest, GarbageClosesTheConnection) {
  for (const size_t size : {size_t{1}, sizeof(Message) - 1, sizeof(Message), sizeof(Message) + 1, size_t{100'000}}) {
    SCOPED_TRACE(size);
    const auto socket = Connect();
    const Bytes garbage = Pattern(size);
    ASSERT_EQ(send(socket->fd(), garbage.data(), size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
    ExpectClosed(*socket);
  }
}

TEST_F(HostileAskerTest, MessagesOutOfPlaceCloseTheConnection) {
  const Uuid generation = owner_.context.self.node;
  const std::vector<std::vector<Message>> talks = {
      {Make(Kind::kMap, 1)},
      {Make(Kind::kRevoked)},
      {Make(Kind::kHello)},  // of nobody
      {Hello(generation), Hello(generation)},
      {Hello(generation), Make(Kind::kMapped, 1)},
      {Hello(generation), Make(Kind::kRevokeAll)},
      {Hello(generation), Make(static_cast<Kind>(99))},
  };
  for (size_t i = 0; i < talks.size(); ++i) {
    SCOPED_TRACE(i);
    const auto socket = Connect();
    for (const Message& message : talks[i]) ASSERT_EQ(socket->Send(message), Socket::Sent::kYes);
    ExpectClosed(*socket);
  }
}

TEST_F(HostileAskerTest, DescriptorsNobodyAskedForCloseTheConnection) {
  const auto socket = Connect();
  ASSERT_EQ(socket->Send(Hello(owner_.context.self.node), buffer_->memfd()), Socket::Sent::kYes);
  ExpectClosed(*socket);
}

TEST_F(HostileAskerTest, AskerThatReadsNoAnswersHoldsUpNobody) {
  const auto socket = Connect();
  ASSERT_EQ(socket->Send(Hello(owner_.context.self.node)), Socket::Sent::kYes);
  size_t asked = 0;
  while (asked < 100'000 && socket->Send(Make(Kind::kMap, region_->published.shm_id)) == Socket::Sent::kYes) ++asked;
  EXPECT_GT(asked, 0u);
  EXPECT_LT(asked, 100'000u);  // the owner stopped reading
  ShmNode asker;
  Bytes local(1);
  EXPECT_TRUE(Do(*asker.transport, kRead, HostRange(local), owner_.Describe(), AddressOf(*buffer_)));
}

TEST_F(HostileAskerTest, AcknowledgementOfNothingIsIgnored) {
  const auto socket = Connect();
  Message answer = Make(Kind::kRevoked);
  answer.revocation = 12345;
  ASSERT_EQ(socket->Send(Hello(owner_.context.self.node)), Socket::Sent::kYes);
  ASSERT_EQ(socket->Send(answer), Socket::Sent::kYes);
  ASSERT_EQ(socket->Send(Make(Kind::kMap, region_->published.shm_id)), Socket::Sent::kYes);
  Message mapped;
  Fd fd;
  ASSERT_EQ(Await(*socket, mapped, fd), Socket::Received::kMessage);
  EXPECT_EQ(mapped.kind, Kind::kMapped);
  EXPECT_TRUE(fd);
}

TEST_F(HostileAskerTest, AnotherUserIsTurnedAway) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string name = owner_.Describe()->shm_socket;
  const Message hello = Hello(owner_.context.self.node);
  const Message question = Make(Kind::kMap, region_->published.shm_id);
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0) _exit(2);
    const auto socket = shm::ConnectTo(name);
    if (!socket) _exit(3);
    (void)(*socket)->Send(hello);
    (void)(*socket)->Send(question);
    Message message;
    Fd fd;
    _exit(Await(**socket, message, fd) == Socket::Received::kClosed ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(MayShareTest, SameUserAndRootUnlessAnyoneMay) {
  EXPECT_TRUE(shm::MayShare({.pid = 1, .uid = geteuid()}, false));
  EXPECT_TRUE(shm::MayShare({.pid = 1, .uid = 0}, false));
  EXPECT_FALSE(shm::MayShare({.pid = 1, .uid = geteuid() + 1}, false));
  EXPECT_FALSE(shm::MayShare({.pid = 1, .uid = static_cast<uid_t>(-1)}, false));
  EXPECT_TRUE(shm::MayShare({.pid = 1, .uid = geteuid() + 1}, true));
}

// An owner that answers as the test says.
class HostileOwnerTest : public ::testing::Test {
 protected:
  using Answer = std::function<void(const Socket&, Message)>;  // the message is a right answer but for the file

  HostileOwnerTest() {
    auto opened = shm::Listener::Open();
    EXPECT_TRUE(opened);
    listener_ = std::move(*opened);
  }
  // What a read ends with when the question is answered like this.
  Result<void> ReadAnsweredBy(const Answer& answer) {
    SegmentDescriptor segment{.name = "hostile", .generation = Uuid::Random()};
    asker_.transport->Describe(segment);
    segment.shm_socket = listener_->name();
    segment.regions = {{.address = 4096, .length = 4096, .shm_id = 7}};
    std::thread owner([&] { Serve(answer); });
    Bytes local(4096);
    auto result = Do(*asker_.transport, kRead, HostRange(local),
                     std::make_shared<const SegmentDescriptor>(std::move(segment)), 4096);
    owner.join();
    return result;
  }
  void Serve(const Answer& answer) {
    pollfd coming{listener_->fd(), POLLIN, 0};
    ASSERT_EQ(poll(&coming, 1, 60'000), 1);
    const auto socket = listener_->Accept();
    ASSERT_TRUE(socket);
    Message message;
    Fd fd;
    ASSERT_EQ(Await(*socket, message, fd), Socket::Received::kMessage);
    EXPECT_EQ(message.kind, Kind::kHello);
    ASSERT_EQ(Await(*socket, message, fd), Socket::Received::kMessage);
    EXPECT_EQ(message.kind, Kind::kMap);
    message.kind = Kind::kMapped;
    message.address = 4096;
    message.length = 4096;
    answer(*socket, message);
    connections_.push_back(socket);
  }
  static Fd Memfd(size_t bytes, bool sealed) {
    Fd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, sealed ? F_SEAL_SHRINK : 0), 0);
    return fd;
  }
  void ExpectFail(const char* what, const Answer& answer) {
    SCOPED_TRACE(what);
    const auto result = ReadAnsweredBy(answer);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::TRANSFER_FAIL) << result.error().ToString();
    EXPECT_NE(result.error().message().find("hostile"), std::string::npos) << result.error().message();
  }

  std::unique_ptr<shm::Listener> listener_;
  std::vector<std::shared_ptr<Socket>> connections_;  // left open: it is the answer that counts
  ShmNode asker_;
};

TEST_F(HostileOwnerTest, HonestAnswerServes) {
  EXPECT_TRUE(ReadAnsweredBy(
      [](const Socket& socket, Message message) { (void)socket.Send(message, Memfd(4096, true).get()); }));
}

TEST_F(HostileOwnerTest, WrongFilesFailTheTransfer) {
  ExpectFail("no file", [](const Socket& socket, Message message) { (void)socket.Send(message); });
  ExpectFail("not sealed",
             [](const Socket& socket, Message message) { (void)socket.Send(message, Memfd(4096, false).get()); });
  ExpectFail("empty", [](const Socket& socket, Message message) { (void)socket.Send(message, Memfd(0, true).get()); });
  ExpectFail("too small",
             [](const Socket& socket, Message message) { (void)socket.Send(message, Memfd(4095, true).get()); });
  ExpectFail("beyond the end", [](const Socket& socket, Message message) {
    message.offset = UINT64_MAX - 100;
    (void)socket.Send(message, Memfd(4096, true).get());
  });
  ExpectFail("pipe", [](const Socket& socket, Message message) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    (void)socket.Send(message, ends[0]);
    close(ends[0]);
    close(ends[1]);
  });
  ExpectFail("device", [](const Socket& socket, Message message) {
    const Fd zero(open("/dev/zero", O_RDWR | O_CLOEXEC));
    (void)socket.Send(message, zero.get());
  });
  ExpectFail("read-only", [](const Socket& socket, Message message) {
    const Fd fd = Memfd(4096, true);
    const Fd read_only(open(fmt::format("/proc/self/fd/{}", fd.get()).c_str(), O_RDONLY | O_CLOEXEC));
    (void)socket.Send(message, read_only.get());
  });
}

TEST_F(HostileOwnerTest, WrongAnswersFailTheTransfer) {
  ExpectFail("end", [](const Socket& socket, const Message&) { socket.Shutdown(); });
  ExpectFail("garbage", [](const Socket& socket, const Message&) {
    const Bytes garbage = Pattern(sizeof(Message));
    ASSERT_GT(send(socket.fd(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  });
  ExpectFail("not asked", [](const Socket& socket, Message message) {
    message.id = 8;
    (void)socket.Send(message, Memfd(4096, true).get());
  });
  ExpectFail("a question", [](const Socket& socket, Message message) {
    message.kind = Kind::kMap;
    (void)socket.Send(message);
  });
  ExpectFail("file with a refusal", [](const Socket& socket, Message message) {
    message.kind = Kind::kUnknown;
    (void)socket.Send(message, Memfd(4096, true).get());
  });
}

TEST_F(HostileOwnerTest, AnswerTwiceClosesTheConnectionAndTheNextReadAsksAgain) {
  for (int i = 0; i < 2; ++i) {
    const auto result = ReadAnsweredBy([](const Socket& socket, Message message) {
      const Fd fd = Memfd(4096, true);
      (void)socket.Send(message, fd.get());
      (void)socket.Send(message, fd.get());
      Message more;
      Fd none;
      EXPECT_EQ(Await(socket, more, none), Socket::Received::kClosed);
    });
    EXPECT_TRUE(result || result.error().code() == ErrorCode::TRANSFER_FAIL);
  }
}

}  // namespace
}  // namespace mooncake
