// Windows of peers moved by the transfer engine.
#pragma once

#include <atomic>
#include <optional>

#include "transfer_engine/transfer_engine.h"
#include "transfer_engine/window_transport.h"

namespace mooncake {

// Memory whose window was granted goes through the engine, that of an NPU if the engine can carry it; everything else
// over the RPC connection. Any thread.
class EngineTransport final : public WindowTransport {
 public:
  // Both outlive this.
  EngineTransport(TransferEngine& engine, WindowTransport& rpc) : engine_(engine), rpc_(rpc) {}
  const char* name() const override { return "engine"; }
  Result<void> Read(const RemoteWindow& window, uint64_t offset, const MemoryRange& local, Deadline deadline) override;
  Result<void> Write(const RemoteWindow& window, uint64_t offset, const MemoryRange& local, Deadline deadline) override;

 private:
  Result<void> Move(TransferOpcode opcode, const RemoteWindow& window, uint64_t offset, const MemoryRange& local,
                    Deadline deadline);
  // nullopt: the engine does not carry this memory.
  std::optional<Result<void>> TryMove(TransferOpcode opcode, const RemoteWindow& window, uint64_t offset,
                                      const MemoryRange& local, Deadline deadline);
  bool Prepare(int32_t device_id);

  TransferEngine& engine_;
  WindowTransport& rpc_;
  std::atomic<bool> npu_over_rpc_ = false;  // found out once: the engine cannot
};

}  // namespace mooncake
