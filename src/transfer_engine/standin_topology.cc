// Parts that land with other branches; only compiled until then.
#include "transfer_engine/topology.h"

namespace mooncake {
Result<Topology> Topology::Discover(std::span<const std::string>, const std::string&) {
  return Topology();
}
Result<Topology> Topology::Parse(std::string_view) {
  return Topology();
}
std::string Topology::ToJson() const {
  return "{}";
}
const Topology::Devices& Topology::Near(const std::string& location) const {
  return locations_.at(location);
}
std::string LocationOf(const void*, size_t) {
  return "cpu:0";
}
}  // namespace mooncake
