// The seam between the store and the wire: moving bytes between local memory and a window of a peer's memory.
#pragma once

#include <cstdint>
#include <memory>

#include "common/clock.h"
#include "device/memory_range.h"
#include "rpc/rpc_client.h"
#include "transfer_engine/transfer_engine.h"

namespace mooncake {

// A run of a peer's memory that the peer opened for us. It is gone when the peer closes it or the connection dies.
struct RemoteWindow {
  std::shared_ptr<rpc::RpcClient> peer;
  uint64_t id = 0;
  uint64_t size = 0;
  std::string endpoint = {};  // of the peer's transfer engine
  GrantedRange grant = {};    // the same bytes for the engine; key 0: only over the RPC connection
};

// One kind of wire. Calls block; any thread. When a call returns, with whatever result, the local memory is no longer
// touched: on a deadline the transfer is cancelled and drained first.
class WindowTransport {
 public:
  virtual ~WindowTransport() = default;
  virtual const char* name() const = 0;
  // Fills `local` from the window's bytes at `offset`: TRANSFER_FAIL or RPC_FAIL naming the peer when that is
  // impossible.
  virtual Result<void> Read(const RemoteWindow& window, uint64_t offset, const MemoryRange& local,
                            Deadline deadline) = 0;
  // Writes `local` into the window; success means that the bytes are in place at the peer.
  virtual Result<void> Write(const RemoteWindow& window, uint64_t offset, const MemoryRange& local,
                             Deadline deadline) = 0;
};

}  // namespace mooncake
