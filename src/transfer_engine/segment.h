// What a peer has to know of a process to move bytes from and to its memory: published as JSON, cached by peers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/endpoint.h"
#include "common/status.h"
#include "common/uuid.h"

namespace mooncake {

// An RDMA device of the segment's process, in the order of the columns of SegmentRegion::rkeys.
struct SegmentDevice {
  std::string name;  // "mlx5_0"
  uint16_t lid = 0;
  std::string gid;  // 16 bytes as "fe:80:...": two hex digits each, colons between
};

// One registered run of memory. One entry per region, whatever the number of transports that reach it.
struct SegmentRegion {
  uint64_t address = 0;
  uint64_t length = 0;
  std::string location = "*";  // "cpu:0", "npu:1"
  // tcp: what a request has to name; 0: only holders of a grant may come over tcp.
  uint64_t key = 0;
  // rdma: the region is cut into pieces of `mr_piece_bytes` (0: one piece); one row per piece, one key per device.
  uint64_t mr_piece_bytes = 0;
  std::vector<std::vector<uint32_t>> rkeys;
  // same host: the memory is this many bytes into the memfd that the segment's process hands out under `shm_id`.
  uint64_t shm_id = 0;  // 0: not shared
  uint64_t shm_offset = 0;
  // same host, NPU memory: the segment's process lets others import it who ask for it under `npu_id`.
  uint64_t npu_id = 0;  // 0: not shared
  // NPU memory: peers of any build reach it through host slots that the segment's process lends them (kLease).
  bool staged = false;

  bool Covers(uint64_t first, uint64_t bytes) const {
    return first >= address && bytes <= length && first - address <= length - bytes;
  }
};

struct SegmentDescriptor {
  std::string name;  // what peers open: "host:port" of the control port unless a metadata server is used
  std::vector<std::string> protocols;  // transports that serve it, best first: "rdma", "tcp"
  Uuid generation;                     // of the process; another one behind the same name means it was restarted
  uint64_t revision = 0;               // grows with every change of this generation
  Endpoint control;                    // the engine's RPC port
  Endpoint tcp_data;                   // port 0: no tcp
  std::string host_id;                 // equal on both sides: same host, same memory
  std::string shm_socket;              // abstract socket that hands out memfds; "": none
  std::string npu_socket;              // abstract socket that lets others import NPU memory; "": none
  std::vector<SegmentDevice> devices;
  std::vector<SegmentRegion> regions;  // sorted by address, disjoint
  std::string topology;                // JSON of Topology::ToJson

  // The region that covers all of [first, first + bytes), or null.
  const SegmentRegion* Find(uint64_t first, uint64_t bytes) const;
};

using SegmentPtr = std::shared_ptr<const SegmentDescriptor>;

// JSON with the field names that earlier engines use (name, protocol, devices, buffers, priority_matrix, ...) where
// they have one. Decoding takes text from strangers: METADATA_ERROR with the place for whatever is wrong, among it
// regions that overlap or wrap around, and keys that do not fit the devices.
std::string EncodeSegment(const SegmentDescriptor& segment);
Result<SegmentDescriptor> DecodeSegment(std::string_view json);

}  // namespace mooncake
