// Spawning, signals, and lines over a socket pair that is the process's stdin and stdout.
#include "transfer/peer_process.h"

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/check.h"
#include "transfer/engine_shell.h"

namespace mooncake::transfer_test {

Result<PeerProcess> PeerProcess::Start() {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "transfer_engine_peer";
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Error(ErrorCode::INTERNAL_ERROR, "socketpair: {}", std::strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  char* const arguments[] = {const_cast<char*>(program.c_str()), nullptr};
  PeerProcess peer;
  const int error = posix_spawn(&peer.pid_, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  peer.socket_ = ends[0];
  if (error != 0) {
    peer.pid_ = -1;
    return Error(ErrorCode::INTERNAL_ERROR, "{}: {}", program, std::strerror(error));
  }
  return peer;
}

PeerProcess::PeerProcess(PeerProcess&& other) noexcept {
  *this = std::move(other);
}

PeerProcess& PeerProcess::operator=(PeerProcess&& other) noexcept {
  if (this == &other) return *this;
  Kill();
  pid_ = std::exchange(other.pid_, -1);
  socket_ = std::exchange(other.socket_, -1);
  received_ = std::exchange(other.received_, {});
  return *this;
}

Result<std::string> PeerProcess::Ask(const std::string& command, Deadline deadline) {
  MC_TRY(Send(command));
  return Answer(deadline);
}

Result<void> PeerProcess::Send(const std::string& command) {
  const std::string line = command + "\n";
  if (send(socket_, line.data(), line.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(line.size())) return {};
  return Error(ErrorCode::RPC_FAIL, "process {}: {}", pid_, std::strerror(errno));
}

Result<std::string> PeerProcess::Answer(Deadline deadline) {
  for (;;) {
    if (const size_t end = received_.find('\n'); end != std::string::npos) {
      const std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return ParseAnswer(line);
    }
    pollfd wait{socket_, POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.Remaining());
    const int ready = poll(&wait, 1, static_cast<int>(std::min<int64_t>(left.count(), 1 << 30)));
    if (ready == 0) return Error(ErrorCode::RPC_FAIL, "process {} does not answer", pid_);
    char bytes[4096];
    const ssize_t got = ready < 0 ? -1 : recv(socket_, bytes, sizeof(bytes), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Error(ErrorCode::RPC_FAIL, "process {} has ended", pid_);
    received_.append(bytes, static_cast<size_t>(got));
  }
}

void PeerProcess::Stop() {
  MC_CHECK(kill(pid_, SIGSTOP) == 0, "SIGSTOP to {}: {}", pid_, std::strerror(errno));
  int status = 0;
  while (waitpid(pid_, &status, WUNTRACED) < 0 && errno == EINTR) {
  }
  MC_CHECK(WIFSTOPPED(status), "process {} did not stop: status {:#x}", pid_, status);
}

void PeerProcess::Continue() {
  MC_CHECK(kill(pid_, SIGCONT) == 0, "SIGCONT to {}: {}", pid_, std::strerror(errno));
}

void PeerProcess::Kill() {
  if (socket_ >= 0) close(std::exchange(socket_, -1));
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

}  // namespace mooncake::transfer_test
