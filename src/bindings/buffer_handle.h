// The value of one object as Python sees it: read-only memory that outlives the key and the store.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "client/real_client.h"

namespace mooncake::python {

// Lets go of a client. The last owner ends its threads and gives its memory back, which must not hold up Python.
void LetGo(std::shared_ptr<RealClient> client);

class BufferHandle {
 public:
  // `client` owns the tier the bytes may lie in.
  BufferHandle(std::shared_ptr<RealClient> client, ObjectBytes object)
      : client_(std::move(client)), object_(std::move(object)) {}
  ~BufferHandle() {
    object_ = {};
    LetGo(std::move(client_));
  }
  BufferHandle(BufferHandle&&) = default;

  uintptr_t address() const { return reinterpret_cast<uintptr_t>(object_.bytes.data()); }
  size_t size() const { return object_.bytes.size(); }
  pybind11::buffer_info Info() const;

 private:
  std::shared_ptr<RealClient> client_;
  ObjectBytes object_;
};

void BindBufferHandle(pybind11::module_& module);

}  // namespace mooncake::python
