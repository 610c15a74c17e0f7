// Moves bytes between registered memory of any two processes: what the store, the Python module and the C API stand on.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/metrics.h"
#include "rpc/io_pool.h"
#include "rpc/rpc_server.h"
#include "transfer_engine/region_registry.h"
#include "transfer_engine/transport.h"
#include "transfer_engine/types.h"

namespace mooncake {

namespace internal {
class EngineCore;
}

struct TransferEngineOptions {
  // "P2PHANDSHAKE": peers are named by their control endpoint and asked for their descriptor. Else the connection
  // string of a metadata server: "http://host:port/metadata", "etcd://host:port[;host:port]", "redis://host:port".
  std::string metadata = "P2PHANDSHAKE";
  // "host", "host:port" or, with a metadata server, any name that peers will open. Empty: 127.0.0.1.
  std::string local_name;
  std::string bind_address;   // of all ports; empty: the host of `local_name`, for names that are not loopback all
  uint16_t control_port = 0;  // unless local_name has one; 0: a free one of the next two
  uint16_t min_control_port = 15000;  // MC_MIN_RPC_PORT
  uint16_t max_control_port = 17000;  // MC_MAX_RPC_PORT
  // MC_LEGACY_RPC_PORT_BINDING: interfaces that are told a port use it as control_port, rather than a free one.
  bool legacy_port_binding = false;
  // What to offer and use, best first. "rdma" without devices is left out with one warning, or refused when `strict`.
  // "ascend_rdma": NPU memory must be able to use them, or Open fails; alone it implies "rdma". Where it is built it
  // comes by itself with the first NPU memory that is registered.
  std::vector<std::string> protocols = {"rdma", "tcp"};
  bool strict_protocol = false;            // MC_STRICT_PROTOCOL
  bool force_tcp = false;                  // MC_FORCE_TCP: tcp carries everything, also within the process and the host
  bool same_host = true;                   // not MC_NO_SAME_HOST: "local", "shm", "ascend" where both ends allow it
  std::vector<std::string> device_filter;  // RDMA devices that may be used; empty: all
  std::string custom_topology;             // JSON (MC_CUSTOM_TOPO_JSON); empty: found out
  size_t io_threads = 2;                   // of the control and tcp connections
  size_t worker_threads = 2;               // copies within the host, metadata look-ups
  Duration default_timeout =
      std::chrono::seconds(30);  // MC_TRANSFER_TIMEOUT: of requests submitted without a deadline, plus 1 ns per byte
  // MC_TRANSFER_SPIN_US: how long a thread that waits for a transfer, or for what peers ask, looks before it sleeps,
  // while such waits use to be that short. 0: never.
  Duration spin = std::chrono::microseconds(50);
  size_t max_batches = 65536;
  size_t max_notifies = 65536;  // kept for GetNotifies; a sender is refused beyond
};

// Of the environment variables in common/env.h that concern the engine; INVALID_PARAMS naming the variable.
Result<TransferEngineOptions> TransferEngineOptionsFromEnvironment();

struct SubmitOptions {
  std::optional<Deadline> deadline;      // of every request; else the engine's default
  std::optional<TransferNotify> notify;  // to every target of this submission, after all of its data is in place there
  Caller caller = Caller::kGoesOn;
};

// A request with everything a wire needs to know of the remote side, for memory that is not in its segment's
// descriptor as such: a grant.
struct GrantedRange {
  uint64_t address = 0;
  uint64_t length = 0;
  uint64_t key = 0;
};

// Every call from any thread. Calls block only where said. What a call returned for, it has let go of.
class TransferEngine {
 public:
  // Opens ports, transports and metadata. Errors name what failed: a taken port, an unreachable metadata server, a
  // protocol that cannot be had. Everything is undone on an error, so it can be called again.
  static Result<std::unique_ptr<TransferEngine>> Open(TransferEngineOptions options);

  // On a server and threads that belong to somebody else: adds its methods to `server`, which must not have started
  // yet and is stopped before the engine goes. Peers come once the server has started.
  struct Host {
    rpc::IoPool& io;
    rpc::RpcServer& server;
    rpc::Identity self;
    Endpoint advertised;  // of the server
  };
  static Result<std::unique_ptr<TransferEngine>> OpenOn(TransferEngineOptions options, Host host);
  // Ends every transfer, leaves the metadata server. No region need be unregistered before.
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  // --- who and where ---
  const std::string& local_name() const;  // what peers open
  uint16_t control_port() const;
  const Uuid& generation() const;
  std::string TopologyJson() const;
  // Names of the transports that this engine has, best first: "local", "shm", "rdma", "tcp", "staged",
  // "ascend_rdma".
  std::vector<std::string> TransportNames() const;
  SegmentDescriptor Describe() const;
  std::string MetricsText() const;

  // --- memory ---
  // The identical range again is counted. INVALID_PARAMS, ADDRESS_OVERLAPPED (with both ranges), or what a transport or
  // the metadata server says; then nothing is registered. Blocks.
  Result<void> RegisterMemory(void* address, size_t length, RegionOptions options = {});
  // Waits for the transfers that use it, this process's and its peers', at most until the default timeout has passed:
  // then TRANSFER_TIMEOUT, and peers begin no new use. Blocks.
  Result<void> UnregisterMemory(void* address);
  // All or nothing, and one publication.
  Result<void> RegisterMemoryBatch(std::span<const HostRange> ranges, RegionOptions options = {});
  Result<void> UnregisterMemoryBatch(std::span<void* const> addresses);
  // Memory that peers on this host can map (a memfd), registered. Freed with FreeMemory.
  Result<void*> AllocateMemory(size_t length, std::string location = "*");
  Result<void> FreeMemory(void* address);
  RegionRegistry& regions();  // for grants

  // --- peers ---
  // P2PHANDSHAKE: "host:port"; else a name of the metadata server. The same name gives the same id. SEGMENT_NOT_FOUND
  // when nobody answers to it. Blocks.
  Result<SegmentId> OpenSegment(const std::string& name, std::optional<Deadline> deadline = std::nullopt);
  Result<void> CloseSegment(SegmentId id);
  // The descriptor as known, or asked for anew. Blocks.
  Result<SegmentPtr> GetSegment(SegmentId id, bool refresh = false);
  // That somebody answers there. Blocks.
  Result<void> Probe(const std::string& name, Deadline deadline);
  Result<void> SendNotify(SegmentId id, const TransferNotify& notify, Deadline deadline);
  // Those received since the last call, in order of arrival from each sender.
  std::vector<TransferNotify> GetNotifies();

  // --- transfers ---
  // TOO_MANY_REQUESTS when max_batches are open. 0 tasks is allowed.
  Result<BatchId> AllocateBatch(size_t max_tasks);
  // Adds tasks to the batch. All or none: TOO_MANY_REQUESTS beyond max_tasks, INVALID_PARAMS for an unknown batch or
  // segment or a range that wraps, ADDRESS_NOT_REGISTERED for NPU memory or a remote range that nobody registered,
  // NOT_SUPPORTED_TRANSPORT when no transport reaches it (the text says why each does not). May block for a look-up
  // of the target's descriptor.
  Result<void> Submit(BatchId batch, std::span<const TransferRequest> requests, SubmitOptions options = {});
  Result<TransferStatus> TaskStatus(BatchId batch, size_t task) const;
  // kWaiting while any task is; then the worst of the tasks' ends, with the bytes of those that completed. A batch
  // without tasks is kCompleted.
  Result<TransferStatus> BatchStatus(BatchId batch) const;
  // Until the batch has ended or the deadline passed (then kWaiting). Blocks.
  Result<TransferStatus> Wait(BatchId batch, Deadline deadline) const;
  // Runs `done` once when all tasks submitted so far have ended, on some thread; at once when they have. Must not
  // block.
  Result<void> OnEnd(BatchId batch, std::move_only_function<void(const TransferStatus&)> done);
  // Tasks that have not ended end as kCanceled as soon as their memory is safe. Does not wait.
  Result<void> Cancel(BatchId batch);
  // BATCH_BUSY while a task has not ended.
  Result<void> FreeBatch(BatchId batch);

  // All of it in one call: the first error, or success. Blocks until every request has ended.
  Result<void> Transfer(std::span<const TransferRequest> requests, Deadline deadline,
                        std::optional<TransferNotify> notify = std::nullopt);
  // One request into or from a grant of the process behind `target`.
  Result<void> TransferGranted(TransferOpcode opcode, const MemoryRange& local, SegmentId target,
                               const GrantedRange& remote, uint64_t offset, Deadline deadline);

  // For people: which transport would carry this request, and why none of the better ones. Moves nothing. Errors are
  // those of Submit; the one for a request that nothing carries has all the reasons. Blocks.
  Result<std::string> Explain(const TransferRequest& request, std::optional<Deadline> deadline = std::nullopt);
  // Lets TransferGranted move memory of an NPU that is not registered, to and from any peer. False: nothing here can.
  // Blocks.
  Result<bool> PrepareDevice(int32_t device_id);

  // See Transport::Fence, for all transports. Blocks.
  void Fence(const Uuid& node);

 private:
  explicit TransferEngine(std::unique_ptr<internal::EngineCore> core);

  const std::unique_ptr<internal::EngineCore> core_;
};

}  // namespace mooncake
