// Life cycle of shared engines.
#include "bindings/shared_engine.h"

#include <unordered_set>

#include "bindings/gil.h"
#include "bindings/process_generation.h"

namespace mooncake::python {
namespace {

// Under the GIL. Never destroyed, as objects may outlive static ones.
std::unordered_set<SharedEngine*>& Live() {
  static auto* live = new std::unordered_set<SharedEngine*>;
  return *live;
}

}  // namespace

SharedEngine::SharedEngine(std::shared_ptr<TransferEngine> engine)
    : engine_(std::move(engine)), generation_(ProcessGeneration()) {
  Live().insert(this);
}

SharedEngine::~SharedEngine() {
  Live().erase(this);
  Drop();
}

std::shared_ptr<TransferEngine> SharedEngine::engine() const {
  return generation_ == ProcessGeneration() ? engine_ : nullptr;
}

void SharedEngine::Drop() {
  if (engine_ == nullptr) return;
  if (generation_ != ProcessGeneration()) {
    // What a parent process left behind is not a child's to end.
    new std::shared_ptr<TransferEngine>(std::move(engine_));
    return;
  }
  const GilRelease release;
  const auto last_perhaps = std::move(engine_);
}

void SharedEngine::DropAll() {
  const std::unordered_set<SharedEngine*> all = Live();
  for (SharedEngine* shared : all) {
    if (Live().contains(shared)) shared->Drop();
  }
}

void BindSharedEngine(pybind11::module_& module) {
  pybind11::class_<SharedEngine>(module, "InnerTransferEngine",
                                 "An engine that others may share; it lives as long as one of its owners. Comes from "
                                 "TransferEngine.get_engine().");
}

}  // namespace mooncake::python
