// ReplicateConfig: accepted wherever a config is, so that programs run unchanged.
#include "bindings/replicate_config.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bindings/convert.h"

namespace mooncake::python {
namespace {

// Lists are Python's own, so that appending to an attribute works.
struct ReplicateConfig {
  uint64_t replica_num = 1;
  bool with_soft_pin = false;
  bool with_hard_pin = false;
  py::list preferred_segments;
  std::string preferred_segment;
  bool prefer_alloc_in_same_node = false;
  uint64_t nof_replica_num = 0;
  uint64_t dfs_replica_num = 0;
  py::list preferred_nof_segments;
  std::string soft_pin_action = "PRESERVE";
  std::optional<uint64_t> soft_pin_ttl_ms;
  py::object data_type = py::none();
  std::optional<py::list> group_ids;
};

constexpr const char* kFields[] = {"replica_num",        "with_soft_pin",     "with_hard_pin",
                                   "preferred_segments", "preferred_segment", "prefer_alloc_in_same_node",
                                   "nof_replica_num",    "dfs_replica_num",   "preferred_nof_segments",
                                   "soft_pin_action",    "soft_pin_ttl_ms",   "data_type",
                                   "group_ids"};

std::string Describe(const py::object& config) {
  std::string text = "ReplicateConfig(";
  for (const char* field : kFields) {
    if (field != kFields[0]) text += ", ";
    text += std::string(field) + "=" + std::string(py::repr(config.attr(field)));
  }
  return text + ")";
}

}  // namespace

void BindReplicateConfig(py::module_& module) {
  py::class_<ReplicateConfig>(
      module, "ReplicateConfig",
      "Hints for a put. All fields are accepted and none has an effect yet: an object has one replica, in the writer's "
      "own tiers if it has any, and leaves when it is the least recently used.\n\n"
      "    config = ReplicateConfig(); config.replica_num = 2; store.put('key', b'value', config)")
      .def(py::init<>(), "ReplicateConfig()\n\n    ReplicateConfig()")
      .def_readwrite("replica_num", &ReplicateConfig::replica_num, "Copies wanted; default 1.")
      .def_readwrite("with_soft_pin", &ReplicateConfig::with_soft_pin, "Evict late; default False.")
      .def_readwrite("with_hard_pin", &ReplicateConfig::with_hard_pin, "Never evict; default False.")
      .def_readwrite("preferred_segments", &ReplicateConfig::preferred_segments, "Owners preferred, a list of str.")
      .def_readwrite("preferred_segment", &ReplicateConfig::preferred_segment, "Owner preferred, as get_hostname().")
      .def_readwrite("prefer_alloc_in_same_node", &ReplicateConfig::prefer_alloc_in_same_node, "Default False.")
      .def_readwrite("nof_replica_num", &ReplicateConfig::nof_replica_num, "Default 0.")
      .def_readwrite("dfs_replica_num", &ReplicateConfig::dfs_replica_num, "Default 0.")
      .def_readwrite("preferred_nof_segments", &ReplicateConfig::preferred_nof_segments, "A list of str.")
      .def_readwrite("soft_pin_action", &ReplicateConfig::soft_pin_action, "Default 'PRESERVE'.")
      .def_readwrite("soft_pin_ttl_ms", &ReplicateConfig::soft_pin_ttl_ms, "Milliseconds or None.")
      .def_readwrite("data_type", &ReplicateConfig::data_type, "What the bytes are; default None.")
      .def_readwrite("group_ids", &ReplicateConfig::group_ids, "One group name per key, or None.")
      .def("__str__", &Describe)
      .def("__repr__", &Describe);
}

void CheckConfig(py::handle config) {
  if (!config.is_none() && !py::isinstance<ReplicateConfig>(config))
    RaiseWrongType("config", "a ReplicateConfig or None", config);
}

}  // namespace mooncake::python
