// Binding of TransferNotify.
#include "bindings/transfer_notify.h"

#include "bindings/convert.h"

namespace mooncake::python {
namespace {

constexpr const char* kEncoding = "utf-8";
constexpr const char* kOnError = "surrogateescape";

py::str Decoded(const std::string& bytes) {
  PyObject* text = PyUnicode_Decode(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), kEncoding, kOnError);
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

std::string Encoded(py::handle object, const char* name) {
  if (PyBytes_Check(object.ptr())) return std::string(KeyOf(object));
  if (!PyUnicode_Check(object.ptr())) RaiseWrongType(name, "str or bytes", object);
  const auto bytes = py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(object.ptr(), kEncoding, kOnError));
  if (!bytes) throw py::error_already_set();
  return std::string(KeyOf(bytes));
}

py::str Describe(const TransferNotify& notify) {
  return py::str("TransferNotify(name={!r}, msg={!r})").format(Decoded(notify.name), Decoded(notify.message));
}

}  // namespace

void BindTransferNotify(py::module_& module) {
  py::class_<TransferNotify>(module, "TransferNotify",
                             "A message to the target of a transfer, delivered after its data.\n\n"
                             "    TransferNotify('request-7', 'kv is there')")
      .def(py::init([](py::handle name, py::handle msg) {
             return TransferNotify{Encoded(name, "name"), Encoded(msg, "msg")};
           }),
           py::arg("name") = py::str(), py::arg("msg") = py::str(),
           "TransferNotify(name: str = '', msg: str = '')\n\n    TransferNotify('request-7', 'done')")
      .def_property(
          "name", [](const TransferNotify& notify) { return Decoded(notify.name); },
          [](TransferNotify& notify, py::handle name) { notify.name = Encoded(name, "name"); }, "Who speaks: a str.")
      .def_property(
          "msg", [](const TransferNotify& notify) { return Decoded(notify.message); },
          [](TransferNotify& notify, py::handle msg) { notify.message = Encoded(msg, "msg"); }, "What is said: a str.")
      .def("__repr__", &Describe);
}

std::optional<TransferNotify> NotifyOf(py::handle notify) {
  if (notify.is_none()) return std::nullopt;
  if (!py::isinstance<TransferNotify>(notify)) RaiseWrongType("notify", "a TransferNotify or None", notify);
  return py::cast<const TransferNotify&>(notify);
}

py::list NotifyList(std::vector<TransferNotify> notifies) {
  py::list list;
  for (TransferNotify& notify : notifies) list.append(py::cast(std::move(notify)));
  return list;
}

}  // namespace mooncake::python
