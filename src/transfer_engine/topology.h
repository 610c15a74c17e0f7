// Which RDMA devices and NPUs are near which memory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace mooncake {

// Immutable. A location is "cpu:<numa node>", "npu:<device>" or "*" (anywhere).
class Topology {
 public:
  struct Devices {
    std::vector<std::string> preferred;  // nearest
    std::vector<std::string> available;  // the others, nearest first
  };

  Topology() = default;
  // From sysfs (`root` replaces "/sys" in tests): NUMA nodes, RDMA devices with an active or inactive port, NPUs. A
  // device of `filter` that does not exist is DEVICE_NOT_FOUND naming those that do; an empty filter means all.
  static Result<Topology> Discover(std::span<const std::string> filter = {}, const std::string& root = "/sys");
  // {"cpu:0": [["mlx5_0"], ["mlx5_1"]], ...}; INVALID_PARAMS with the place of what is wrong.
  static Result<Topology> Parse(std::string_view json);
  std::string ToJson() const;

  // All devices, each once, in a stable order.
  const std::vector<std::string>& devices() const { return devices_; }
  // Of an unknown location: of "*".
  const Devices& Near(const std::string& location) const;

 private:
  explicit Topology(std::map<std::string, Devices> locations);

  std::map<std::string, Devices> locations_;  // with "*", but for an empty topology
  std::vector<std::string> devices_;
};

// "cpu:<node>" of the first page that is in memory, "cpu:0" when none is or the host has one node.
std::string LocationOf(const void* address, size_t length);

}  // namespace mooncake
