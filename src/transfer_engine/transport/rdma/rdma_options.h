// Settings of the RDMA transport, from the environment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/clock.h"
#include "common/status.h"

namespace mooncake::rdma {

struct RdmaOptions {
  uint8_t port = 1;                    // MC_IB_PORT
  int gid_index = -1;                  // MC_GID_INDEX, MC_IB_GID_INDEX, NCCL_IB_GID_INDEX; -1: chosen
  uint32_t mtu_bytes = 4096;           // MC_MTU: 256..4096; the path's MTU is at most the ports'
  size_t queues_per_rail = 2;          // MC_NUM_QP_PER_EP: 1..16
  uint32_t queue_depth = 128;          // MC_MAX_WR: work requests a queue pair has at once
  size_t slice_bytes = 256u << 10;     // MC_SLICE_SIZE
  uint64_t max_mr_bytes = 1ull << 40;  // MC_MAX_MR_SIZE: of a piece of a region, if the devices take as much
  bool relaxed_ordering = true;        // MC_IB_PCI_RELAXED_ORDERING, where the device offers it
  uint8_t traffic_class = 0;           // MC_IB_TC
  uint8_t service_level = 0;           // MC_IB_SL
  uint16_t pkey_index = 0;             // MC_PKEY_INDEX
  int max_attempts = 9;                // MC_RETRY_CNT: failures of its own that a slice survives

  // Time-outs of the wire: 4.096 us * 2^17 = 0.54 s for an acknowledgement, and six more attempts. 7 would mean "for
  // ever" to some devices.
  uint8_t ack_timeout = 17;
  uint8_t retry_count = 6;
  uint8_t rnr_retry = 6;
  uint8_t read_depth = 16;  // reads a queue pair has on the wire at once

  size_t max_rails = 16;              // of one peer
  size_t window_bytes = 8u << 20;     // posted on one queue pair at once, if it is more than one slice
  size_t concurrent_handshakes = 16;  // begun by this process and not finished
  Duration handshake_timeout = std::chrono::seconds(10);
  Duration no_progress = std::chrono::seconds(15);  // MC_SLICE_TIMEOUT: a queue pair without completions is given up
  Duration drain_limit = std::chrono::milliseconds(500);   // for flushed completions, then the queue pair is destroyed
  Duration cancel_grace = std::chrono::milliseconds(100);  // for what is posted when a batch is cancelled
  Duration pause_first = std::chrono::milliseconds(100);   // of a rail that failed; doubled by each further failure
  Duration pause_last = std::chrono::seconds(10);
  Duration link_settle = std::chrono::milliseconds(200);  // from a port's return to its use
  Duration withdraw_grace = std::chrono::seconds(5);      // for own transfers of a region that is unregistered

  // INVALID_PARAMS naming the variable and what it may be.
  static Result<RdmaOptions> FromEnvironment();
};

}  // namespace mooncake::rdma
