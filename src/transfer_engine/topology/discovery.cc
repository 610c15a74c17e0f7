// Topology from sysfs, and the place of memory from the kernel. All that is asked for is in a dozen small files and one
// system call, so neither hwloc nor libnuma is needed.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "transfer_engine/topology.h"
#include "transfer_engine/topology/natural_less.h"

namespace mooncake {
namespace {

constexpr int kUnknownNode = -1;
constexpr int kLocalDistance = 10;     // as ACPI counts
constexpr int kRemoteDistance = 20;    // its default when the firmware tells none
constexpr int kUnknownDistance = 256;  // beyond what ACPI can say
constexpr std::string_view kNpuVendor = "0x19e5";
constexpr std::string_view kNpuClass = "0x1200";  // processing accelerator

// First line without the white space around it; "" when it cannot be read.
std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const size_t end = line.find_last_not_of(" \t\r\n");
  line.erase(end == std::string::npos ? 0 : end + 1);
  line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
  return line;
}

std::optional<int> Number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Names in a folder, in natural order; none when it cannot be read.
std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::ranges::sort(names, NaturalLess);
  return names;
}

struct Nodes {
  std::map<int, std::vector<int>> distances;  // of each node to all, in the order of nodes

  int Distance(int from, int to) const {
    if (from == kUnknownNode || to == kUnknownNode) return kUnknownDistance;
    const auto row = distances.find(from);
    const auto column = distances.find(to);
    if (row == distances.end() || column == distances.end()) return kUnknownDistance;
    const auto index = static_cast<size_t>(std::distance(distances.begin(), column));
    if (row->second.size() == distances.size()) return row->second[index];
    return from == to ? kLocalDistance : kRemoteDistance;
  }
};

Nodes ReadNodes(const std::string& root) {
  Nodes nodes;
  const std::string folder = root + "/devices/system/node";
  for (const std::string& name : Names(folder)) {
    if (!name.starts_with("node")) continue;
    const auto node = Number(std::string_view(name).substr(4));
    if (!node || *node < 0) continue;
    std::istringstream line(ReadLine(fmt::format("{}/{}/distance", folder, name)));
    nodes.distances[*node] = {std::istream_iterator<int>(line), {}};
  }
  if (nodes.distances.empty()) nodes.distances[0] = {};  // a kernel without NUMA
  return nodes;
}

struct Device {
  std::string name;
  int node = kUnknownNode;
  bool active = false;
};

// On a host of one node everything is there, whatever the firmware says.
int NodeOf(const std::string& device_folder, const Nodes& nodes) {
  if (nodes.distances.size() == 1) return nodes.distances.begin()->first;
  const auto node = Number(ReadLine(device_folder + "/numa_node"));
  return node && nodes.distances.contains(*node) ? *node : kUnknownNode;
}

std::vector<Device> ReadRdmaDevices(const std::string& root, const Nodes& nodes) {
  std::vector<Device> devices;
  const std::string folder = root + "/class/infiniband";
  for (const std::string& name : Names(folder)) {
    const std::string device = fmt::format("{}/{}/device", folder, name);
    const std::string ports = fmt::format("{}/{}/ports", folder, name);
    const auto numbers = Names(ports);
    if (numbers.empty()) continue;
    const bool active = std::ranges::any_of(numbers, [&](const std::string& number) {
      return ReadLine(fmt::format("{}/{}/state", ports, number)).contains("ACTIVE");
    });
    devices.push_back({name, NodeOf(device, nodes), active});
  }
  return devices;
}

// NUMA node of every NPU, in the order of PCI addresses, in which the driver numbers them.
std::vector<int> ReadNpus(const std::string& root, const Nodes& nodes) {
  std::vector<int> npus;
  const std::string folder = root + "/bus/pci/devices";
  auto addresses = Names(folder);
  std::ranges::sort(addresses);  // hexadecimal of fixed width
  for (const std::string& address : addresses) {
    const std::string device = fmt::format("{}/{}", folder, address);
    if (ReadLine(device + "/vendor") != kNpuVendor || !ReadLine(device + "/class").starts_with(kNpuClass)) continue;
    npus.push_back(NodeOf(device, nodes));
  }
  return npus;
}

Topology::Devices NearestTo(int node, const Nodes& nodes, std::vector<Device> devices) {
  const auto distance = [&](const Device& device) { return nodes.Distance(node, device.node); };
  std::ranges::stable_sort(devices, [&](const Device& a, const Device& b) {
    return std::pair(distance(a), !a.active) < std::pair(distance(b), !b.active);
  });
  Topology::Devices near;
  for (const Device& device : devices) {
    (distance(device) == distance(devices.front()) ? near.preferred : near.available).push_back(device.name);
  }
  return near;
}

Result<void> KeepOnly(std::span<const std::string> filter, std::vector<Device>& devices) {
  if (filter.empty()) return {};
  for (const std::string& wanted : filter) {
    if (std::ranges::find(devices, wanted, &Device::name) != devices.end()) continue;
    std::vector<std::string> names;
    names.reserve(devices.size());
    for (const Device& device : devices) names.push_back(device.name);
    return Error(ErrorCode::DEVICE_NOT_FOUND, "no RDMA device '{}'; this host has {}", wanted,
                 names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  }
  std::erase_if(devices, [&](const Device& device) { return std::ranges::find(filter, device.name) == filter.end(); });
  return {};
}

}  // namespace

Result<Topology> Topology::Discover(std::span<const std::string> filter, const std::string& root) {
  const Nodes nodes = ReadNodes(root);
  std::vector<Device> devices = ReadRdmaDevices(root, nodes);
  MC_TRY(KeepOnly(filter, devices));
  std::map<std::string, Devices> locations;
  for (const auto& [node, distances] : nodes.distances) {
    locations[fmt::format("cpu:{}", node)] = NearestTo(node, nodes, devices);
  }
  const std::vector<int> npus = ReadNpus(root, nodes);
  for (size_t i = 0; i < npus.size(); ++i) {
    locations[fmt::format("npu:{}", i)] = NearestTo(npus[i], nodes, devices);
  }
  return Topology(std::move(locations));
}

std::string LocationOf(const void* address, size_t length) {
  constexpr size_t kInOrder = 512;  // pages asked one by one from the start
  constexpr size_t kSpread = 512;   // and over the rest: a large mapping may be empty but for a part
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(address) / page_bytes;
  const size_t count = length / page_bytes + (length % page_bytes != 0 ? 1 : 0);
  std::vector<void*> pages;
  const auto add = [&](size_t page) { pages.push_back(reinterpret_cast<void*>((first + page) * page_bytes)); };
  for (size_t page = 0; page < std::min(count, kInOrder); ++page) add(page);
  for (size_t i = 0; count > kInOrder && i < kSpread; ++i) {
    add(kInOrder + static_cast<size_t>(static_cast<unsigned __int128>(count - kInOrder) * i / kSpread));
  }
  // Asks only and moves nothing. Kernels without NUMA and sandboxes refuse it.
  std::vector<int> status(pages.size(), -1);
  if (syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, status.data(), 0) != 0) return "cpu:0";
  const auto present = std::ranges::find_if(status, [](int node) { return node >= 0; });
  return fmt::format("cpu:{}", present == status.end() ? 0 : *present);
}

}  // namespace mooncake
