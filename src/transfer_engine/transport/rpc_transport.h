// Windows moved over the RPC connection itself, in chunks: works wherever the control connection does.
#pragma once

#include "common/executor.h"
#include "device/staging_pool.h"
#include "rpc/rpc_server.h"
#include "transfer_engine/window_table.h"
#include "transfer_engine/window_transport.h"

namespace mooncake {

// Bytes per request, and so the size of a staging slot.
inline constexpr size_t kTransferChunkBytes = 4 << 20;

// The starting side. Host memory goes straight to and from the socket; NPU memory passes through the pool's slots.
class RpcTransport final : public WindowTransport {
 public:
  // `staging` outlives the transport; its slots hold at least kTransferChunkBytes.
  explicit RpcTransport(StagingPool& staging) : staging_(staging) {}
  const char* name() const override { return "rpc"; }
  Result<void> Read(const RemoteWindow& window, uint64_t offset, const MemoryRange& local, Deadline deadline) override;
  Result<void> Write(const RemoteWindow& window, uint64_t offset, const MemoryRange& local, Deadline deadline) override;

 private:
  StagingPool& staging_;
};

// Threads of the answering side. What waits for a slot must not stand in the way of the work that frees one: with a
// single executor enough waiting requests would stop those that hold all slots.
struct ServingThreads {
  Executor& executor;  // device copies and other work that never waits for a slot
  Executor& stagers;   // what may wait for a slot
};

// The answering side: handlers for window reads and writes on a server, before it starts. All arguments outlive the
// server. Device copies run on `threads`, never on an I/O thread.
void ServeWindows(rpc::RpcServer& server, WindowTable& windows, StagingPool& staging, ServingThreads threads);

}  // namespace mooncake
