// What every transport is opened with. The engine owns all of it and outlives its transports.
#pragma once

#include "common/endpoint.h"
#include "common/executor.h"
#include "common/metrics.h"
#include "rpc/io_pool.h"
#include "rpc/rpc_server.h"
#include "transfer_engine/peer_links.h"
#include "transfer_engine/region_registry.h"
#include "transfer_engine/topology.h"
#include "transfer_engine/transfer_engine.h"

namespace mooncake {

struct TransportContext {
  const TransferEngineOptions& options;
  RegionRegistry& regions;
  const Topology& topology;
  rpc::IoPool& io;
  rpc::RpcServer& server;  // not started yet: methods and session callbacks may be added while a transport opens
  PeerLinks& links;        // control connections to peers, for methods of protocol/methods.h
  Executor& workers;       // for what may block or copies much; bounded queue
  MetricRegistry& metrics;
  Uuid generation;        // of this process
  std::string bind_host;  // of further ports
  Endpoint advertised;    // the control port as peers reach it; further ports are advertised with the same host
};

}  // namespace mooncake
