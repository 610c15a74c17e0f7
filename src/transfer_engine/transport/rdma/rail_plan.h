// Which pairs of devices two processes use, and how requests are cut for them: arithmetic without state.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transfer_engine/segment.h"
#include "transfer_engine/topology.h"
#include "transfer_engine/transport/rdma/addressing.h"

namespace mooncake::rdma {

// A device here and one of the peer; both by their place in the list of their process.
struct Rail {
  size_t local = 0;
  size_t remote = 0;
  friend bool operator==(const Rail&, const Rail&) = default;
};

// Every device of the side that has more of them is in one rail, at most `limit` rails. Devices whose addresses have
// the longer prefix in common are joined first (a rail per subnet), equals in order. None when a side has none.
std::vector<Rail> PlanRails(std::span<const Gid> local, std::span<const Gid> remote, size_t limit);

// How much farther than the nearest each rail is for a transfer between these locations: 0, 1 (one end is far) or 2.
std::vector<uint8_t> RailDistances(std::span<const Rail> rails, std::span<const std::string> local_devices,
                                   std::span<const SegmentDevice> remote_devices, const Topology& local,
                                   const std::string& local_location, const Topology& remote,
                                   const std::string& remote_location);

// Bytes from `address` to the end of its piece; all that is left when the region is one piece.
uint64_t LeftInPiece(uint64_t region_address, uint64_t piece_bytes, uint64_t address);

// How long the next slice of a request is: `remaining` bytes are left of it, of which this many lie in one piece of
// memory on either side. A small rest is not left over.
uint64_t SliceLength(uint64_t remaining, uint64_t left_in_local_piece, uint64_t left_in_remote_piece,
                     uint64_t slice_bytes);

}  // namespace mooncake::rdma
