// Tests with several processes on one emulated device: a directory for ACLEMU_DIR, and processes to talk to.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>

#include "test/emulator_session.h"

// Removed with everything in it.
class SharedDir {
 public:
  SharedDir() {
    const char* tmp = getenv("TMPDIR");
    std::string name = std::string(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : tmp != nullptr ? tmp : "/tmp");
    name += "/aclemu-test-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr) << name;
    path_ = name;
  }
  ~SharedDir() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// One end of a pair of pipes. Values have a fixed size on both ends. False when the other end is gone.
class Link {
 public:
  Link() = default;
  Link(int in, int out) : in_(in), out_(out) {}
  template <typename T>
  bool Tell(const T& value) const {
    return write(out_, &value, sizeof(T)) == static_cast<ssize_t>(sizeof(T));
  }
  template <typename T>
  bool Hear(T* value) const {
    size_t done = 0;
    while (done < sizeof(T)) {
      ssize_t got = read(in_, reinterpret_cast<char*>(value) + done, sizeof(T) - done);
      if (got <= 0) return false;
      done += static_cast<size_t>(got);
    }
    return true;
  }
  template <typename T>
  T Get() const {
    T value{};
    EXPECT_TRUE(Hear(&value)) << "the other process is gone";
    return value;
  }
  void Close() {
    for (int* fd : {&in_, &out_}) {
      if (*fd < 0) continue;
      close(*fd);
      std::erase(Open(), *fd);
      *fd = -1;
    }
  }
  // The ends that the test holds; a new process must not keep them open.
  static std::vector<int>& Open() {
    static std::vector<int> open;
    return open;
  }

 private:
  int in_ = -1, out_ = -1;
};

// A forked process. The test itself must not have called ACL. Killed, if it still runs, when this object ends.
class Peer {
 public:
  Peer(const Knobs& knobs, const std::function<void(Link&)>& body) {
    int down[2], up[2];
    EXPECT_EQ(pipe2(down, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(up, O_CLOEXEC), 0);
    fflush(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      signal(SIGPIPE, SIG_IGN);
      for (int fd : Link::Open()) close(fd);
      close(down[1]);
      close(up[0]);
      for (const auto& [name, value] : knobs) setenv(name, value.c_str(), 1);
      Link link(down[0], up[1]);
      body(link);
      fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 99 : 0);
    }
    close(down[0]);
    close(up[1]);
    link_ = Link(up[0], down[1]);
    Link::Open().insert(Link::Open().end(), {up[0], down[1]});
  }
  ~Peer() {
    Kill();
    link_.Close();
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  Link& link() { return link_; }
  pid_t pid() const { return pid_; }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    End();
  }
  // Lets it see the end of its input, and gives its exit code; -1 when a signal ended it.
  int Join() {
    link_.Close();
    return End();
  }

 private:
  int End() {
    int status = -1;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  pid_t pid_;
  Link link_;
};

inline void Start(int device = 0) {
  ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetDevice(device), ACL_SUCCESS);
}

// Answers every byte it hears with the free memory of the device.
class Observer {
 public:
  explicit Observer(const Knobs& knobs, int device = 0)
      : peer_(knobs, [device](Link& link) {
          Start(device);
          char ask;
          while (link.Hear(&ask)) link.Tell(FreeBytes());
        }) {}
  uint64_t Free() {
    EXPECT_TRUE(peer_.link().Tell('?'));
    return peer_.link().Get<uint64_t>();
  }
  Peer& peer() { return peer_; }

 private:
  Peer peer_;
};
