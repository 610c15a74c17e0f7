// Windows of peers moved by the transfer engine.
#pragma once

#include "transfer_engine/transfer_engine.h"
#include "transfer_engine/window_transport.h"

namespace mooncake {

// Host memory whose window was granted goes through the engine; everything else over the RPC connection. Any thread.
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

  TransferEngine& engine_;
  WindowTransport& rpc_;
};

}  // namespace mooncake
