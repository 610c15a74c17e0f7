// Opening the transports that the options ask for.
#include "transfer_engine/transport_factory.h"

#include <algorithm>
#include <string_view>

#include "common/log.h"
#include "device/npu_runtime.h"
#include "transfer_engine/protocol_names.h"
#ifdef MC_HAS_ASCEND_DIRECT
#include "transfer_engine/transport/ascend/ascend_direct_transport.h"
#endif
#ifdef MC_HAS_ASCEND_RDMA
#include "transfer_engine/transport/ascend_rdma/ascend_rdma_transport.h"
#endif
#include "transfer_engine/transport/local/local_transport.h"
#include "transfer_engine/transport/rdma/rdma_transport.h"
#include "transfer_engine/transport/shm/shm_transport.h"
#include "transfer_engine/transport/staged/staged_transport.h"
#include "transfer_engine/transport/tcp/tcp_transport.h"

namespace mooncake {
namespace {

using TransportPtr = std::unique_ptr<Transport>;

template <typename T>
Result<void> Append(const TransportContext& context, std::vector<TransportPtr>& transports) {
  transports.push_back(MC_TRY(T::Open(context)));
  return {};
}

// False: there is none here, and that is allowed.
Result<bool> AppendRdma(const TransportContext& context, std::vector<TransportPtr>& transports) {
  const Result<void> opened = Append<RdmaTransport>(context, transports);
  if (opened) return true;
  const ErrorCode code = opened.error().code();
  const bool none_here = code == ErrorCode::DEVICE_NOT_FOUND || code == ErrorCode::NOT_SUPPORTED_TRANSPORT;
  if (!none_here || context.options.strict_protocol) return Annotate(opened.error(), "protocol 'rdma'");
  log::Warn("rdma cannot be used, tcp carries its transfers: {}", opened.error().message());
  context.metrics.GetCounter("mooncake_transfer_rdma_fallback_total", "engines that asked for rdma and have none")
      .Add();
  return false;
}

// Where it is asked for, or where NPU memory is in use.
Result<void> AppendAscend(const TransportContext& context, std::vector<TransportPtr>& transports) {
  const bool asked = std::ranges::find(context.options.protocols, "ascend") != context.options.protocols.end();
#ifdef MC_HAS_ASCEND_DIRECT
  if (!asked && (!context.options.same_host || UsedNpuRuntime() == nullptr)) return {};
  const Result<void> opened = Append<AscendDirectTransport>(context, transports);
  if (!opened) return Annotate(opened.error(), "protocol 'ascend'");
#else
  static_cast<void>(transports);
  if (asked) {
    return Error(ErrorCode::NOT_SUPPORTED_TRANSPORT,
                 "protocol 'ascend' is not in this build: its CMake option USE_ASCEND_DIRECT is off");
  }
#endif
  return {};
}

// To NPU memory of others, over the host transports that there are.
void AppendStaged(const TransportContext& context, std::vector<TransportPtr>& transports) {
  std::vector<Transport*> wires;
  for (const TransportPtr& transport : transports) {
    const std::string_view name = transport->name();
    if (name == "rdma" || name == "tcp") wires.push_back(transport.get());
  }
  if (!wires.empty()) transports.push_back(std::make_unique<StagedTransport>(context.links, std::move(wires)));
}

// The way of NPU memory over the host transports that there are. Last, so that it goes before them. Without being named
// it costs nothing until NPU memory is registered.
Result<void> AppendBridge(const TransportContext& context, std::vector<TransportPtr>& transports) {
  const bool named = std::ranges::count(context.options.protocols, kBridgeProtocol) > 0;
  if (named) MC_TRY(CheckBridgeBuilt());
#ifdef MC_HAS_ASCEND_RDMA
  std::vector<Transport*> wires;
  for (const TransportPtr& transport : transports) {
    const std::string_view name = transport->name();
    if (name == "rdma" || name == "tcp" || name == "staged") wires.push_back(transport.get());
  }
  auto bridge = AscendRdmaTransport::Open(context, std::move(wires), named);
  if (!bridge) return Annotate(bridge.error(), "protocol 'ascend_rdma'");
  transports.push_back(std::move(*bridge));
#else
  static_cast<void>(transports);
#endif
  return {};
}

}  // namespace

Result<std::vector<TransportPtr>> OpenTransports(const TransportContext& context) {
  const TransferEngineOptions& options = context.options;
  for (const std::string& protocol : options.protocols) {
    if (protocol != "rdma" && protocol != "tcp" && protocol != "ascend" && protocol != kBridgeProtocol) {
      return Error(ErrorCode::INVALID_PARAMS, "protocol '{}' is none of 'rdma', 'tcp', 'ascend', 'ascend_rdma'",
                   protocol);
    }
  }
  std::vector<TransportPtr> transports;
  if (options.force_tcp) {
    MC_TRY(Append<TcpTransport>(context, transports));
    AppendStaged(context, transports);
    MC_TRY(AppendBridge(context, transports));
    return transports;
  }
  if (options.same_host) {
    MC_TRY(Append<LocalTransport>(context, transports));
    MC_TRY(Append<ShmTransport>(context, transports));
  }
  MC_TRY(AppendAscend(context, transports));
  const bool names_wire =
      std::ranges::any_of(options.protocols, [](const auto& name) { return name == "rdma" || name == "tcp"; });
  bool has_tcp = false;
  bool wants_tcp = false;
  for (const std::string& protocol : options.protocols) {
    if (protocol == "rdma" || (protocol == kBridgeProtocol && !names_wire)) {
      wants_tcp |= !MC_TRY(AppendRdma(context, transports));
    } else if (protocol == "tcp" && !std::exchange(has_tcp, true)) {
      MC_TRY(Append<TcpTransport>(context, transports));
    }
  }
  if (wants_tcp && !has_tcp) MC_TRY(Append<TcpTransport>(context, transports));
  AppendStaged(context, transports);
  MC_TRY(AppendBridge(context, transports));
  return transports;
}

}  // namespace mooncake
