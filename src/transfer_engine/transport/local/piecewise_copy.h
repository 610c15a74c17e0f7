// Copies of whole operations by the CPU or an NPU's copy engine, in pieces, so that cancel and deadline act between.
#pragma once

#include <memory>
#include <vector>

#include "common/executor.h"
#include "transfer_engine/transport.h"

namespace mooncake {

// The other side of a copy. Its memory stays where it is as long as this lives. Usable may be asked by any thread.
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;
  // Why nothing more may be read or written there; asked before every piece.
  virtual Result<void> Usable() const = 0;
};

struct PieceCopy {
  TransferOperation operation;
  MemoryRange remote;  // as long as the operation's local memory
  std::shared_ptr<const RemoteMemory> memory;
};

// Any thread. Ends every operation it is given exactly once; has let go of the local use and of the remote memory by
// then. The workers outlive it.
class PiecewiseCopier {
 public:
  struct Limits {
    size_t inline_bytes = 64 << 10;       // what Submit copies at once also for a caller that goes on, each
    size_t inline_total_bytes = 1 << 20;  // and all of one Submit together
    size_t piece_bytes = 4 << 20;         // about 0.5 ms of one thread
    size_t npu_piece_bytes = 32 << 20;    // an NPU's copy engine needs more under way, and pays per synchronisation
    size_t runner_bytes = 32 << 20;       // copied by a worker before others' work has its turn
    size_t max_runners = 2;               // workers used at a time
    size_t max_waiting = 65536;           // jobs; beyond, whoever submits does the copy itself
  };

  // `name` of the transport, for errors and the thread.
  PiecewiseCopier(std::string name, Executor& workers, Limits limits);
  ~PiecewiseCopier();  // as Stop
  PiecewiseCopier(const PiecewiseCopier&) = delete;
  PiecewiseCopier& operator=(const PiecewiseCopier&) = delete;

  void Run(std::vector<PieceCopy> copies, Caller caller);
  // What waits ends on this thread, what is being copied after its piece.
  void Cancel(BatchId tag);
  // The same for copies whose remote memory is not usable any more, with what Usable says.
  void EndUnusable();
  // Ends everything with SHUTTING_DOWN and returns when no memory is touched any more. Idempotent; what comes later
  // ends at once.
  void Stop();

 private:
  class Core;
  const std::shared_ptr<Core> core_;  // shared with tasks that the workers have not begun when this dies
};

// Lets go of the local memory, then tells the result.
void EndOperation(TransferOperation& operation, Result<void> result);

}  // namespace mooncake
