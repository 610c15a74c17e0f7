// The engine at the far end of a test and how to talk to it; options that leave only one wire between two engines.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transfer/engine_shell.h"
#include "transfer/peer_process.h"
#include "transfer_engine/transfer_engine.h"

namespace mooncake::transfer_test {

inline constexpr size_t kKiB = 1 << 10;
inline constexpr size_t kMiB = 1 << 20;

// Names of the wires under test: "local", "shm", "tcp" and, where NPU memory can be brought over it, "npu_tcp",
// "tcp_npu" and "npu_tcp_npu", or what MC_TRANSFER_TEST_PROTOCOLS lists, commas between. RDMA needs the devices of
// tests/rdma_vm.
std::vector<std::string> WiresUnderTest();
// Those of them that lead to another process, by one way each.
std::vector<std::string> WiresToPeers();

// "npu_tcp" is the wire "tcp" with the memory of this process on an NPU, "tcp_npu" with that of the far end, and
// "npu_tcp_npu" with both.
std::string WireOf(const std::string& parameter);
bool OnNpu(const std::string& parameter);
bool FarOnNpu(const std::string& parameter);

// Enough for anything to end on a busy machine; a test that needs it all has failed.
Deadline Soon();
// A deadline of requests that must end before it, for another reason.
Deadline Far();

// Lets this process open as many files as the system allows it: hundreds of engines need thousands.
void AllowManyFiles();

// Of this process's engine.
TransferEngineOptions NearOptions(const std::string& parameter, const std::string& devices = "");

// Where the far engine is and how it does what it is asked.
class FarEnd {
 public:
  struct Ports {
    std::string name;
    uint16_t control = 0;
    uint16_t tcp_data = 0;
    std::string shm_socket;
  };

  // In this process, on this engine, which outlives it.
  explicit FarEnd(TransferEngine& engine) : shell_(std::make_unique<EngineShell>(engine)) {
    ports_.name = engine.local_name();
  }
  // In a process of its own. `port`: of the control connections, 0 for any.
  static Result<std::unique_ptr<FarEnd>> Start(const std::string& wire, uint16_t port = 0,
                                               const std::string& devices = "");

  // Every call is a command of EngineShell.
  Result<std::string> Ask(const std::string& command);
  Result<uint64_t> AskNumber(const std::string& command);
  Result<void> Do(const std::string& command);

  const Ports& ports() const { return ports_; }
  PeerProcess& process() { return *process_; }

 private:
  explicit FarEnd(PeerProcess process) : process_(std::move(process)) {}

  std::unique_ptr<EngineShell> shell_;
  std::optional<PeerProcess> process_;
  Ports ports_;
};

}  // namespace mooncake::transfer_test
