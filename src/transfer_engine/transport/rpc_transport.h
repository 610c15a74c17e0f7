// Windows moved over the RPC connection itself, in chunks: works wherever the control connection does.
#pragma once

#include "common/executor.h"
#include "device/staging_pool.h"
#include "rpc/rpc_server.h"
#include "transfer_engine/transport.h"
#include "transfer_engine/window_table.h"

namespace mooncake {

// Bytes per request, and so the size of a staging slot.
inline constexpr size_t kTransferChunkBytes = 4 << 20;

// The starting side. Host memory goes straight to and from the socket; NPU memory passes through the pool's slots.
class RpcTransport final : public Transport {
 public:
  // `staging` outlives the transport; its slots hold at least kTransferChunkBytes.
  explicit RpcTransport(StagingPool& staging) : staging_(staging) {}
  const char* name() const override { return "rpc"; }
  Result<void> Read(const RemoteWindow& window, uint64_t offset, const MemoryRange& local, Deadline deadline) override;
  Result<void> Write(const RemoteWindow& window, uint64_t offset, const MemoryRange& local, Deadline deadline) override;

 private:
  StagingPool& staging_;
};

// What serving peers takes besides I/O threads.
struct ServingThreads {
  StagingPool& staging;
  Executor& intake;  // work that may wait for a staging slot
  Executor& finish;  // work that frees one: never waits for a slot, so waiters in intake cannot hold it up
};

// The answering side: handlers for window reads and writes on a server, before it starts. All arguments outlive the
// server. Device copies run on the executors, never on an I/O thread.
void ServeWindows(rpc::RpcServer& server, WindowTable& windows, ServingThreads threads);

}  // namespace mooncake
