// fork, exec and pipes.
#include "bench/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace mooncake::bench {
namespace {

// In the child, between fork and exec: system calls only.
[[noreturn]] void Become(char* const* argv, int in, int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0) _exit(127);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvp(argv[0], argv);
  _exit(127);
}

}  // namespace

Result<Child> Child::Start(const std::vector<std::string>& argv) {
  std::vector<char*> words;
  words.reserve(argv.size() + 1);
  for (const auto& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  int in[2];
  int out[2];
  if (pipe2(in, O_CLOEXEC) != 0) return Error(ErrorCode::INTERNAL_ERROR, "pipe: {}", std::strerror(errno));
  if (pipe2(out, O_CLOEXEC) != 0) {
    const int error = errno;
    close(in[0]);
    close(in[1]);
    return Error(ErrorCode::INTERNAL_ERROR, "pipe: {}", std::strerror(error));
  }
  const pid_t pid = fork();
  const int error = errno;
  if (pid == 0) Become(words.data(), in[0], out[1]);
  close(in[0]);
  close(out[1]);
  Child child(argv[0], pid, in[1], out[0]);
  if (pid < 0) return Error(ErrorCode::INTERNAL_ERROR, "fork: {}", std::strerror(error));
  return child;
}

Child::Child(Child&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, -1)),
      to_child_(std::exchange(other.to_child_, -1)),
      from_child_(std::exchange(other.from_child_, -1)),
      buffered_(std::move(other.buffered_)) {}

Child::~Child() {
  if (to_child_ >= 0) close(to_child_);
  if (from_child_ >= 0) close(from_child_);
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<void> Child::WriteLine(const std::string& line) {
  const std::string text = line + "\n";
  if (write(to_child_, text.data(), text.size()) == static_cast<ssize_t>(text.size())) return {};
  return Error(ErrorCode::INTERNAL_ERROR, "{}: write: {}", name_, std::strerror(errno));
}

Result<bool> Child::ReadMore(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.Remaining());
  pollfd poll_for{from_child_, POLLIN, 0};
  const int ready = poll(&poll_for, 1, static_cast<int>(std::min<int64_t>(left.count(), 1 << 30)));
  if (ready == 0) return Error(ErrorCode::RPC_FAIL, "{} said nothing in time", name_);
  char bytes[4096];
  const ssize_t got = ready < 0 ? -1 : read(from_child_, bytes, sizeof(bytes));
  if (got < 0 && errno == EINTR) return true;
  if (got < 0) return Error(ErrorCode::INTERNAL_ERROR, "{}: read: {}", name_, std::strerror(errno));
  buffered_.append(bytes, static_cast<size_t>(got));
  return got > 0;
}

Result<std::string> Child::ReadLine(Deadline deadline) {
  for (;;) {
    if (const size_t end = buffered_.find('\n'); end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    if (!MC_TRY(ReadMore(deadline))) return Error(ErrorCode::RPC_FAIL, "{} ended before it was ready", name_);
  }
}

Result<std::string> Child::ReadAll(Deadline deadline) {
  while (MC_TRY(ReadMore(deadline))) {
  }
  return std::exchange(buffered_, {});
}

}  // namespace mooncake::bench
