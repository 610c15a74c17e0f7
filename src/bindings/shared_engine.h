// An engine in Python's hands: what get_engine() gives to whoever is to share it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "transfer_engine/transfer_engine.h"

namespace mooncake::python {

// Keeps the engine alive. Needs the GIL; the last owner ends the engine without it.
class SharedEngine {
 public:
  explicit SharedEngine(std::shared_ptr<TransferEngine> engine);
  ~SharedEngine();
  SharedEngine(const SharedEngine&) = delete;
  SharedEngine& operator=(const SharedEngine&) = delete;

  // Null in a child of the process that opened it, and at the end of the interpreter.
  std::shared_ptr<TransferEngine> engine() const;

  // For the end of the interpreter: lets go of the engines of all of these.
  static void DropAll();

 private:
  void Drop();

  std::shared_ptr<TransferEngine> engine_;
  const uint64_t generation_;
};

void BindSharedEngine(pybind11::module_& module);

}  // namespace mooncake::python
