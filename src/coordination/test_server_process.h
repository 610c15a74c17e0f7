// Another program's server on loopback for the length of a test, with a folder of its own.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/check.h"
#include "common/endpoint.h"

namespace mooncake {

// Free when asked; somebody else may take it, so a server that does not start is tried on another one.
inline uint16_t FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  MC_CHECK(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
               getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0,
           "no free port: {}", errno);
  close(fd);
  return ntohs(address.sin_port);
}

// "" when scripts/fetch_test_servers.sh has not been run.
inline std::string TestServersFolder() {
  const char* build = std::getenv("MC_BUILD_DIR");
  if (build == nullptr) return "";
  const std::filesystem::path folder = std::filesystem::path(build).parent_path() / "test_servers";
  return std::filesystem::exists(folder / "usr/bin/etcd") ? folder.string() : "";
}

class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "server_test.XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Runs until destruction or Kill. Dies with the test.
class ServerProcess {
 public:
  // `ready`: a text that the program prints when it serves.
  ServerProcess(const std::vector<std::string>& command, const std::string& ready) {
    int ends[2];
    MC_CHECK(pipe2(ends, O_CLOEXEC) == 0, "pipe: {}", errno);
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const std::string folder = TestServersFolder();
    std::string libraries = "LD_LIBRARY_PATH=";
    for (const auto& entry : std::filesystem::directory_iterator(folder + "/usr/lib")) {
      libraries += entry.path().string() + ":";
    }
    char* environment[] = {libraries.data(), nullptr};
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(126);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execve(arguments[0], arguments.data(), environment);
      _exit(127);
    }
    MC_CHECK(pid_ > 0, "fork: {}", errno);
    close(ends[1]);
    output_ = ends[0];
    started_ = ReadUntil(ready);
    drain_ = std::thread([fd = output_] {
      char buffer[4096];
      while (read(fd, buffer, sizeof(buffer)) > 0) {
      }
    });
  }
  ~ServerProcess() {
    Kill();
    drain_.join();
    close(output_);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  bool started() const { return started_; }
  const std::string& said() const { return said_; }
  void Signal(int number) const { kill(pid_, number); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  bool ReadUntil(const std::string& ready) {
    char buffer[4096];
    for (ssize_t got = 0; (got = read(output_, buffer, sizeof(buffer))) > 0;) {
      said_.append(buffer, static_cast<size_t>(got));
      if (said_.contains(ready)) return true;
    }
    return false;
  }

  pid_t pid_ = -1;
  int output_ = -1;
  bool started_ = false;
  std::string said_;  // until it was ready
  std::thread drain_;
};

// etcd with one member and a folder of its own, which outlives its lives.
class EtcdProcess {
 public:
  // False when the port has been taken meanwhile.
  bool Start(uint16_t port) {
    const std::string clients = "http://127.0.0.1:" + std::to_string(port);
    if (peers_.empty()) peers_ = "http://127.0.0.1:" + std::to_string(FreePort());
    process_.emplace(
        std::vector<std::string>{TestServersFolder() + "/usr/bin/etcd", "--data-dir", folder_.path() + "/data",
                                 "--listen-client-urls", clients, "--advertise-client-urls", clients,
                                 "--listen-peer-urls", peers_, "--initial-advertise-peer-urls", peers_,
                                 "--initial-cluster", "default=" + peers_},
        "ready to serve client requests");
    port_ = port;
    return process_->started();
  }
  void Kill() { process_->Kill(); }
  // On a free port; null, with a failed test, when it does not start.
  static std::unique_ptr<EtcdProcess> OnFreePort() {
    constexpr int kAttempts = 5;
    for (int i = 0; i < kAttempts; ++i) {
      auto server = std::make_unique<EtcdProcess>();
      if (server->Start(FreePort())) return server;
    }
    ADD_FAILURE() << "etcd does not start";
    return nullptr;
  }
  Endpoint endpoint() const { return {"127.0.0.1", port_}; }

 private:
  TestFolder folder_;
  std::string peers_;
  uint16_t port_ = 0;
  std::optional<ServerProcess> process_;
};

#define SKIP_WITHOUT_SERVERS() \
  if (TestServersFolder().empty()) GTEST_SKIP() << "no real servers: run scripts/fetch_test_servers.sh"

// A server that lets `answer` answer every connection after its first bytes, and closes when the client has.
class ScriptedServer {
 public:
  using Answer = std::function<void(int fd)>;
  enum class Close { kAfterClient, kAtOnce };

  explicit ScriptedServer(Answer answer, Close when = Close::kAfterClient) : answer_(std::move(answer)), when_(when) {
    listening_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    MC_CHECK(bind(listening_, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(listening_, 16) == 0 &&
                 getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &size) == 0,
             "listen: {}", errno);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  // Sends this and closes.
  explicit ScriptedServer(std::string text)
      : ScriptedServer([text = std::move(text)](int fd) { (void)send(fd, text.data(), text.size(), MSG_NOSIGNAL); }) {}
  // For `answer`: says nothing until the client has closed.
  static void WaitForClose(int fd) {
    char bytes[65536];
    while (recv(fd, bytes, sizeof(bytes), 0) > 0) {
    }
  }
  ~ScriptedServer() {
    shutdown(listening_, SHUT_RDWR);
    thread_.join();
    close(listening_);
  }

  uint16_t port() const { return port_; }

 private:
  void Serve() {
    for (int fd = 0; (fd = accept(listening_, nullptr, nullptr)) >= 0; close(fd)) {
      char request[65536];
      if (recv(fd, request, sizeof(request), 0) > 0) answer_(fd);
      // Closing with bytes unread would take the answer away from the client.
      if (when_ == Close::kAtOnce) continue;
      shutdown(fd, SHUT_WR);
      WaitForClose(fd);
    }
  }

  const Answer answer_;
  const Close when_;
  int listening_ = -1;
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace mooncake
