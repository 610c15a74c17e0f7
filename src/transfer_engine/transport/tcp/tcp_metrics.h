// What the tcp transport counts.
#pragma once

#include "common/metrics.h"

namespace mooncake::tcp {

// Any thread; lives as long as the registry.
struct TcpMetrics {
  explicit TcpMetrics(MetricRegistry& registry)
      : dialed(registry.GetCounter("transfer_tcp_connections_total", "data connections made", {{"side", "initiator"}})),
        accepted(registry.GetCounter("transfer_tcp_connections_total", "data connections made", {{"side", "target"}})),
        rejected(registry.GetCounter("transfer_tcp_rejected_connections_total",
                                     "accepted connections closed for what they said, or for lack of room")),
        bytes_sent(registry.GetCounter("transfer_tcp_bytes_total", "payload moved", {{"direction", "out"}})),
        bytes_received(registry.GetCounter("transfer_tcp_bytes_total", "payload moved", {{"direction", "in"}})),
        bytes_lent(registry.GetCounter("transfer_tcp_lent_bytes_total", "payload sent without a copy to the kernel")),
        refused(registry.GetCounter("transfer_tcp_refused_requests_total",
                                    "requests of peers for memory that is not open to them")),
        lost(registry.GetCounter("transfer_tcp_lost_connections_total", "connections lost with requests under way")),
        retries(registry.GetCounter("transfer_tcp_retries_total", "requests sent again on a new connection")),
        open(registry.GetGauge("transfer_tcp_open_connections", "accepted connections now")) {}

  Counter& dialed;
  Counter& accepted;
  Counter& rejected;
  Counter& bytes_sent;
  Counter& bytes_received;
  Counter& bytes_lent;
  Counter& refused;
  Counter& lost;
  Counter& retries;
  Gauge& open;
};

}  // namespace mooncake::tcp
