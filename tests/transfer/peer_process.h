// Starts, asks, stops and kills the process at the far end of a test.
#pragma once

#include <sys/types.h>

#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace mooncake::transfer_test {

// One thread, which also has to outlive the process: the kernel kills it with the thread that started it.
class PeerProcess {
 public:
  // The program transfer_engine_peer, from the folder of this one.
  static Result<PeerProcess> Start();
  PeerProcess(PeerProcess&& other) noexcept;
  PeerProcess& operator=(PeerProcess&& other) noexcept;
  ~PeerProcess() { Kill(); }

  // Sends a command of EngineShell and waits for its answer.
  Result<std::string> Ask(const std::string& command, Deadline deadline);
  // Waits for the answer of a command sent before.
  Result<std::string> Answer(Deadline deadline);
  Result<void> Send(const std::string& command);

  void Stop();      // SIGSTOP; returns when it stands still
  void Continue();  // SIGCONT
  void Kill();      // SIGKILL; returns when it is gone
  pid_t pid() const { return pid_; }

 private:
  PeerProcess() = default;

  pid_t pid_ = -1;
  int socket_ = -1;
  std::string received_;
};

}  // namespace mooncake::transfer_test
