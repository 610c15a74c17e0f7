// Pairing of devices and cutting of requests.
#include "transfer_engine/transport/rdma/rail_plan.h"

#include <algorithm>
#include <set>

namespace mooncake::rdma {
namespace {

// Rounds of one device of the larger side to one of the smaller, so that no device serves twice before all have served.
std::vector<Rail> Pair(std::span<const Gid> many, std::span<const Gid> few) {
  std::vector<Rail> rails;
  std::set<size_t> left;
  for (size_t i = 0; i < many.size(); ++i) left.insert(i);
  while (!left.empty()) {
    std::set<size_t> free;
    for (size_t i = 0; i < few.size(); ++i) free.insert(i);
    while (!left.empty() && !free.empty()) {
      Rail best{*left.begin(), *free.begin()};
      int best_prefix = -1;
      for (const size_t a : left) {
        for (const size_t b : free) {
          const int prefix = CommonPrefix(many[a], few[b]);
          if (prefix <= best_prefix) continue;
          best = {a, b};
          best_prefix = prefix;
        }
      }
      rails.push_back(best);
      left.erase(best.local);
      free.erase(best.remote);
    }
  }
  return rails;
}

bool IsNear(const Topology& topology, const std::string& location, const std::string& device) {
  const std::vector<std::string>& preferred = topology.Near(location).preferred;
  // A host that knows of no nearness has no far devices.
  return preferred.empty() || std::ranges::find(preferred, device) != preferred.end();
}

}  // namespace

std::vector<Rail> PlanRails(std::span<const Gid> local, std::span<const Gid> remote, size_t limit) {
  if (local.empty() || remote.empty()) return {};
  std::vector<Rail> rails;
  if (local.size() >= remote.size()) {
    rails = Pair(local, remote);
  } else {
    rails = Pair(remote, local);
    for (Rail& rail : rails) std::swap(rail.local, rail.remote);
  }
  if (rails.size() > limit) rails.resize(limit);
  std::ranges::sort(rails, {}, [](const Rail& rail) { return std::pair(rail.local, rail.remote); });
  return rails;
}

std::vector<uint8_t> RailDistances(std::span<const Rail> rails, std::span<const std::string> local_devices,
                                   std::span<const SegmentDevice> remote_devices, const Topology& local,
                                   const std::string& local_location, const Topology& remote,
                                   const std::string& remote_location) {
  std::vector<uint8_t> distances;
  for (const Rail& rail : rails) {
    const bool near_here = IsNear(local, local_location, local_devices[rail.local]);
    const bool near_there = IsNear(remote, remote_location, remote_devices[rail.remote].name);
    distances.push_back(static_cast<uint8_t>((near_here ? 0 : 1) + (near_there ? 0 : 1)));
  }
  if (distances.empty()) return distances;
  const uint8_t nearest = *std::ranges::min_element(distances);
  for (uint8_t& distance : distances) distance = static_cast<uint8_t>(distance - nearest);
  return distances;
}

uint64_t LeftInPiece(uint64_t region_address, uint64_t piece_bytes, uint64_t address) {
  if (piece_bytes == 0) return UINT64_MAX;
  return piece_bytes - (address - region_address) % piece_bytes;
}

uint64_t SliceLength(uint64_t remaining, uint64_t left_in_local_piece, uint64_t left_in_remote_piece,
                     uint64_t slice_bytes) {
  const uint64_t wanted = remaining <= slice_bytes + slice_bytes / 4 ? remaining : slice_bytes;
  return std::min({wanted, left_in_local_piece, left_in_remote_piece});
}

}  // namespace mooncake::rdma
