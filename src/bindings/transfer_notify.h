// Notifications between engines, as Python sees them.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <vector>

#include "transfer_engine/types.h"

namespace mooncake::python {

// TransferNotify(name, msg). Both are str in Python; bytes that are no UTF-8 appear as lone surrogates and are sent as
// they came.
void BindTransferNotify(pybind11::module_& module);
// TypeError unless `notify` is None or a TransferNotify.
std::optional<TransferNotify> NotifyOf(pybind11::handle notify);
pybind11::list NotifyList(std::vector<TransferNotify> notifies);

}  // namespace mooncake::python
