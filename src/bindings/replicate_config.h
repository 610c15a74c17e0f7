// Hints that applications pass with a put.
#pragma once

#include <pybind11/pybind11.h>

namespace mooncake::python {

void BindReplicateConfig(pybind11::module_& module);
// TypeError unless `config` is None or a ReplicateConfig.
void CheckConfig(pybind11::handle config);

}  // namespace mooncake::python
