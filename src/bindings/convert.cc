// Conversions on the C API.
#include "bindings/convert.h"

#include <cstring>

#include "bindings/gil.h"

namespace mooncake::python {
namespace {

// Below this a copy costs less than passing the GIL around.
constexpr size_t kCopyWithoutGilBytes = size_t{64} << 10;

py::tuple TupleOf(py::handle sequence, const char* name, const char* wanted) {
  if (PyUnicode_Check(sequence.ptr()) || PyBytes_Check(sequence.ptr()) || sequence.is_none())
    RaiseWrongType(name, wanted, sequence);
  PyObject* tuple = PySequence_Tuple(sequence.ptr());
  if (tuple == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
    PyErr_Clear();
    RaiseWrongType(name, wanted, sequence);
  }
  return py::reinterpret_steal<py::tuple>(tuple);
}

py::list NewList(size_t size) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(size));
  if (list == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::list>(list);
}

void SetInt(const py::list& list, size_t position, int64_t value) {
  PyObject* number = PyLong_FromLongLong(value);
  if (number == nullptr) throw py::error_already_set();
  PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(position), number);
}

}  // namespace

void RaiseWrongType(const char* name, const char* wanted, py::handle got) {
  PyErr_Format(PyExc_TypeError, "%s must be %s, not %s", name, wanted, Py_TYPE(got.ptr())->tp_name);
  throw py::error_already_set();
}

std::string_view KeyOf(py::handle object) {
  Py_ssize_t size = 0;
  if (PyUnicode_Check(object.ptr())) {
    const char* text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
    if (text == nullptr) throw py::error_already_set();
    return {text, static_cast<size_t>(size)};
  }
  if (!PyBytes_Check(object.ptr())) RaiseWrongType("key", "str or bytes", object);
  return {PyBytes_AS_STRING(object.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(object.ptr()))};
}

std::string TextOf(py::handle object, const char* name) {
  if (!PyUnicode_Check(object.ptr())) RaiseWrongType(name, "a str", object);
  return std::string(KeyOf(object));
}

uint64_t UnsignedOf(py::handle object, const char* name) {
  const char* wanted = "an int from 0 to 2**64 - 1";
  py::object number;
  if (PyLong_Check(object.ptr())) {
    number = py::reinterpret_borrow<py::object>(object);
  } else {
    number = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
    if (!number) {
      if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
      PyErr_Clear();
      RaiseWrongType(name, wanted, object);
    }
  }
  const uint64_t value = PyLong_AsUnsignedLongLong(number.ptr());
  if (value == UINT64_MAX && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s must be %s, not %R", name, wanted, number.ptr());
    throw py::error_already_set();
  }
  return value;
}

KeyList::KeyList(py::handle sequence) : objects_(TupleOf(sequence, "keys", "a sequence of str or bytes")) {
  const auto count = static_cast<size_t>(PyTuple_GET_SIZE(objects_.ptr()));
  views_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    views_.push_back(KeyOf(PyTuple_GET_ITEM(objects_.ptr(), static_cast<Py_ssize_t>(i))));
  }
}

std::vector<uint64_t> UnsignedList(py::handle sequence, const char* name) {
  const py::tuple objects = TupleOf(sequence, name, "a sequence of int");
  const Py_ssize_t count = PyTuple_GET_SIZE(objects.ptr());
  std::vector<uint64_t> values(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = UnsignedOf(PyTuple_GET_ITEM(objects.ptr(), i), name);
  }
  return values;
}

PinnedBytes::PinnedBytes(py::handle object, const char* name) {
  const char* wanted = "a contiguous bytes-like object";
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) {
    // BufferError, ValueError and TypeError all say that this object cannot serve as a value.
    PyErr_Clear();
    RaiseWrongType(name, wanted, object);
  }
}

py::bytes CopyToBytes(std::span<const std::byte> source) {
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(source.size()));
  if (bytes == nullptr) throw py::error_already_set();
  auto result = py::reinterpret_steal<py::bytes>(bytes);
  char* target = PyBytes_AS_STRING(bytes);
  if (source.size() >= kCopyWithoutGilBytes) {
    GilRelease release;
    std::memcpy(target, source.data(), source.size());
  } else if (!source.empty()) {
    std::memcpy(target, source.data(), source.size());
  }
  return result;
}

py::list IntList(std::span<const int64_t> values) {
  const py::list list = NewList(values.size());
  for (size_t i = 0; i < values.size(); ++i) SetInt(list, i, values[i]);
  return list;
}

py::list RepeatedInt(int64_t value, size_t count) {
  const py::list list = NewList(count);
  for (size_t i = 0; i < count; ++i) SetInt(list, i, value);
  return list;
}

}  // namespace mooncake::python
