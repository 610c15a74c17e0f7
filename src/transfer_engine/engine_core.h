// What stands behind a TransferEngine: its parts, in the order in which they must come and go.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/executor.h"
#include "transfer_engine/batch_table.h"
#include "transfer_engine/control_port.h"
#include "transfer_engine/engine_service.h"
#include "transfer_engine/metadata/metadata_store.h"
#include "transfer_engine/multi_transport.h"
#include "transfer_engine/region_keeper.h"
#include "transfer_engine/segment_source.h"
#include "transfer_engine/topology.h"
#include "transfer_engine/transfer_engine.h"
#include "transfer_engine/transport_context.h"

namespace mooncake::internal {

// Parts that come from outside; tests bring their own.
struct EngineParts {
  std::function<Result<std::vector<std::unique_ptr<Transport>>>(const TransportContext&)> open_transports;
  std::function<Result<std::unique_ptr<MetadataStore>>(const std::string& connection)> open_metadata;
  std::function<std::shared_ptr<NpuRuntime>()> npu;

  static EngineParts Real();
};

// See TransferEngine for the calls. Any thread, but for Open and destruction.
class EngineCore {
 public:
  static Result<std::unique_ptr<EngineCore>> Open(TransferEngineOptions options,
                                                  std::optional<TransferEngine::Host> host = std::nullopt,
                                                  EngineParts parts = EngineParts::Real());
  ~EngineCore();
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  const std::string& name() const { return base_.name; }
  uint16_t control_port() const { return base_.control.port; }
  const Uuid& generation() const { return base_.generation; }
  const Topology& topology() const { return topology_; }
  SegmentPtr Describe() const { return self_->Descriptor(); }
  std::vector<std::string> TransportNames() const;
  std::string MetricsText();

  RegionRegistry& regions() { return regions_; }
  RegionKeeper& keeper() { return *keeper_; }
  SegmentCache& segments() { return *segments_; }
  BatchTable& batches() { return *batches_; }
  const BatchTable& batches() const { return *batches_; }

  Result<void> Probe(const std::string& name, Deadline deadline);
  Result<void> SendNotify(SegmentId id, const TransferNotify& notify, Deadline deadline);
  std::vector<TransferNotify> GetNotifies() { return service_->TakeNotifies(); }

  Result<void> Submit(BatchId id, std::span<const TransferRequest> requests, SubmitOptions options);
  Result<void> Cancel(BatchId id);
  Result<void> Transfer(std::span<const TransferRequest> requests, Deadline deadline,
                        std::optional<TransferNotify> notify);
  Result<void> TransferGranted(TransferOpcode opcode, const MemoryRange& local, SegmentId target,
                               const GrantedRange& remote, uint64_t offset, Deadline deadline);
  void Fence(const Uuid& node);
  Result<std::string> Explain(const TransferRequest& request, Deadline deadline) {
    return transports_->Explain(request, deadline);
  }
  Result<bool> PrepareDevice(int32_t device_id);

 private:
  explicit EngineCore(TransferEngineOptions options) : options_(std::move(options)) {}

  Result<void> Start(std::optional<TransferEngine::Host> host, EngineParts parts);
  Result<void> OpenServer(std::optional<TransferEngine::Host> host, ControlAddress& address);
  Result<void> OpenTopology();
  void NameSender(std::optional<TransferNotify>& notify) const;
  Result<void> NotifyOnce(const SegmentDescriptor& segment, const TransferNotify& notify, Deadline deadline);
  Result<Endpoint> ControlOf(const std::string& name, Deadline deadline);

  const TransferEngineOptions options_;
  MetricRegistry metrics_;
  RegionRegistry regions_;
  Topology topology_;
  std::unique_ptr<MetadataStore> metadata_;  // null in P2P mode
  std::unique_ptr<rpc::IoPool> own_io_;
  std::unique_ptr<rpc::RpcServer> own_server_;
  rpc::IoPool* io_ = nullptr;
  rpc::RpcServer* server_ = nullptr;
  SegmentDescriptor base_;
  std::unique_ptr<PeerLinks> links_;
  std::unique_ptr<Executor> workers_;
  std::unique_ptr<SegmentSource> source_;
  std::unique_ptr<SegmentCache> segments_;
  std::unique_ptr<MultiTransport> transports_;
  std::unique_ptr<SelfSegment> self_;
  std::unique_ptr<SegmentPublisher> publisher_;  // null in P2P mode
  std::unique_ptr<EngineService> service_;
  std::unique_ptr<RegionKeeper> keeper_;
  std::unique_ptr<BatchTable> batches_;
};

}  // namespace mooncake::internal
