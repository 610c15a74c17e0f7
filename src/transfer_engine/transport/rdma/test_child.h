// A second process of a test: the same program, told by lines on its standard input, answering by lines.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace mooncake::rdma {

class ChildProcess {
 public:
  // /proc/self/exe with these arguments.
  explicit ChildProcess(std::vector<std::string> arguments) {
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      std::string name = "/proc/self/exe";
      std::vector<char*> argv = {name.data()};
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(name.c_str(), argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = out[0];
  }
  ~ChildProcess() {
    Signal(SIGCONT);
    close(to_);  // asks it to end
    Wait();
    close(from_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // "" when it has ended.
  std::string ReadLine() {
    std::string line;
    char c = 0;
    while (read(from_, &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
  std::string Ask(const std::string& question) {
    const std::string line = question + "\n";
    if (write(to_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) return "";
    return ReadLine();
  }
  void Signal(int signal) {
    if (pid_ > 0) kill(pid_, signal);
  }
  // Returns once none of its threads runs.
  void Stop() {
    Signal(SIGSTOP);
    if (pid_ > 0) waitpid(pid_, nullptr, WUNTRACED);
  }
  void Wait() {
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
};

}  // namespace mooncake::rdma
