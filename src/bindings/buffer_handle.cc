// Binding of BufferHandle.
#include "bindings/buffer_handle.h"

#include "bindings/gil.h"

namespace mooncake::python {

namespace py = pybind11;

void LetGo(std::shared_ptr<RealClient> client) {
  if (client == nullptr || client.use_count() > 1) return;
  GilRelease release;
  client.reset();
}

py::buffer_info BufferHandle::Info() const {
  return {object_.bytes.data(), 1, "B", 1, {static_cast<py::ssize_t>(size())}, {py::ssize_t{1}}, /*readonly=*/true};
}

void BindBufferHandle(py::module_& module) {
  py::class_<BufferHandle>(module, "BufferHandle", py::buffer_protocol(),
                           "The bytes of one object, read-only. Offers the buffer protocol (memoryview, bytes, "
                           "numpy.frombuffer). They stay as they are for as long as the handle or a view of it lives, "
                           "also after remove() of the key and close() of the store.\n\n"
                           "    handle = store.get_buffer('key'); memoryview(handle)[:4]")
      .def("ptr", &BufferHandle::address,
           "ptr() -> int\n\nAddress of the first byte, in host memory.\n\n    handle.ptr()")
      .def("size", &BufferHandle::size, "size() -> int\n\nSize in bytes.\n\n    handle.size()")
      .def("__len__", &BufferHandle::size, "Size in bytes.")
      .def_buffer(&BufferHandle::Info);
}

}  // namespace mooncake::python
