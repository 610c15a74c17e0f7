// Parts that land with other branches; only compiled until then.
#include "rpc/codec.h"
#include "transfer_engine/metadata/metadata_store.h"
#include "transfer_engine/segment.h"
#include "transfer_engine/topology.h"

namespace mooncake {
namespace {
struct WireRegion {
  uint64_t address = 0, length = 0, key = 0, mr_piece_bytes = 0, shm_id = 0, shm_offset = 0;
  std::string location;
  std::vector<std::vector<uint32_t>> rkeys;
  MSGPACK_DEFINE_MAP(address, length, key, mr_piece_bytes, shm_id, shm_offset, location, rkeys);
};
struct WireDevice {
  std::string name, gid;
  uint16_t lid = 0;
  MSGPACK_DEFINE_MAP(name, gid, lid);
};
struct WireSegment {
  std::string name, host_id, shm_socket, topology, control_host, tcp_host;
  uint16_t control_port = 0, tcp_port = 0;
  std::vector<std::string> protocols;
  Uuid generation;
  uint64_t revision = 0;
  std::vector<WireDevice> devices;
  std::vector<WireRegion> regions;
  MSGPACK_DEFINE_MAP(name, host_id, shm_socket, topology, control_host, tcp_host, control_port, tcp_port, protocols,
                     generation, revision, devices, regions);
};
}  // namespace

std::string EncodeSegment(const SegmentDescriptor& s) {
  WireSegment w;
  w.name = s.name;
  w.host_id = s.host_id;
  w.shm_socket = s.shm_socket;
  w.topology = s.topology;
  w.control_host = s.control.host;
  w.control_port = s.control.port;
  w.tcp_host = s.tcp_data.host;
  w.tcp_port = s.tcp_data.port;
  w.protocols = s.protocols;
  w.generation = s.generation;
  w.revision = s.revision;
  for (const auto& d : s.devices) w.devices.push_back({d.name, d.gid, d.lid});
  for (const auto& r : s.regions) {
    w.regions.push_back({r.address, r.length, r.key, r.mr_piece_bytes, r.shm_id, r.shm_offset, r.location, r.rkeys});
  }
  return rpc::Encode(w);
}
Result<SegmentDescriptor> DecodeSegment(std::string_view text) {
  const WireSegment w = MC_TRY(rpc::Decode<WireSegment>(text));
  SegmentDescriptor s;
  s.name = w.name;
  s.host_id = w.host_id;
  s.shm_socket = w.shm_socket;
  s.topology = w.topology;
  s.control = {w.control_host, w.control_port};
  s.tcp_data = {w.tcp_host, w.tcp_port};
  s.protocols = w.protocols;
  s.generation = w.generation;
  s.revision = w.revision;
  for (const auto& d : w.devices) s.devices.push_back({d.name, d.lid, d.gid});
  for (const auto& r : w.regions) {
    s.regions.push_back({r.address, r.length, r.location, r.key, r.mr_piece_bytes, r.rkeys, r.shm_id, r.shm_offset});
  }
  return s;
}
}  // namespace mooncake
