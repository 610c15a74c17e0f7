// The extension module mooncake.store: names, defaults and doc strings.
#include <pybind11/pybind11.h>

#include "bindings/buffer_handle.h"
#include "bindings/replicate_config.h"
#include "bindings/setup_options.h"
#include "bindings/store.h"

namespace mooncake::python {
namespace {

using StoreClass = py::class_<Store>;

void BindLifeCycle(StoreClass& store) {
  store.def(py::init<>(), "MooncakeDistributedStore()\n\n    store = MooncakeDistributedStore()")
      .def("setup", &Store::Setup, SetupDocument().c_str())
      .def("setup_p2p_real_client", &Store::SetupP2p, SetupP2pDocument().c_str())
      .def("close", &Store::Close,
           "close() -> int\n\nLeaves the store; always 0. Calls under way finish or return -1600, later ones the "
           "answers "
           "of a store that was not set up. May be repeated, and setup() may follow; the data of this process is gone "
           "from the store.\n\n    store.close()")
      .def(
          "health_check", &Store::HealthCheck,
          "health_check() -> int\n\n0: usable, 1: not set up, 2: the master is not reachable (own objects can still be "
          "read).\n\n    store.health_check() == 0")
      .def("get_hostname", &Store::Hostname,
           "get_hostname() -> str\n\n'host:port' where peers reach this process; '' when not set up.\n\n"
           "    store.get_hostname()");
}

void BindPut(StoreClass& store) {
  const py::arg_v config = py::arg("config") = py::none();
  store
      .def("put", &Store::Put, py::arg("key"), py::arg("value"), config,
           "put(key: str | bytes, value: bytes-like, config: ReplicateConfig = None) -> int\n\nStores a value. 0: any "
           "client can read it now; also when the key exists, which keeps its first value. -200: no space, -600: bad "
           "argument or not set up, -900: the master or a peer did not answer. The value may be empty.\n\n"
           "    store.put('key', b'value') == 0")
      .def("put_parts", &Store::PutParts, py::arg("key"),
           "put_parts(key: str | bytes, *parts: bytes-like, config: ReplicateConfig = None) -> int\n\nStores the "
           "concatenation of the parts; codes as put().\n\n    store.put_parts('key', header, body)")
      .def("put_batch", &Store::PutBatch, py::arg("keys"), py::arg("values"), config,
           "put_batch(keys: list, values: list, config: ReplicateConfig = None) -> int\n\n0, or the code of the first "
           "key that failed; -600 when the lengths differ. The first of equal keys wins.\n\n"
           "    store.put_batch(['a', 'b'], [b'1', b'2'])")
      .def("put_from", &Store::PutFrom, py::arg("key"), py::arg("buffer_ptr"), py::arg("size"), config,
           "put_from(key: str | bytes, buffer_ptr: int, size: int, config: ReplicateConfig = None) -> int\n\nStores "
           "`size` bytes at an address of host or NPU memory; codes as put().\n\n"
           "    store.put_from('key', array.ctypes.data, array.nbytes)")
      .def("batch_put_from", &Store::BatchPutFrom, py::arg("keys"), py::arg("buffer_ptrs"), py::arg("sizes"), config,
           "batch_put_from(keys: list, buffer_ptrs: list[int], sizes: list[int], config: ReplicateConfig = None) -> "
           "list[int]\n\nput_from() for many keys: one code per key, in order. Lists of different lengths: -600 for "
           "each "
           "key. The first of equal keys wins and all of them get its code.\n\n"
           "    store.batch_put_from(['a', 'b'], [address, address + 4096], [4096, 4096])");
}

void BindGet(StoreClass& store) {
  const py::arg_v config = py::arg("config") = py::none();
  store
      .def("get", &Store::Get, py::arg("key"), config,
           "get(key: str | bytes, config=None) -> bytes\n\nThe value; b'' when there is none or it could not be "
           "read.\n\n    store.get('key')")
      .def("get_batch", &Store::GetBatch, py::arg("keys"), config,
           "get_batch(keys: list, config=None) -> list[bytes]\n\nget() for many keys, in order.\n\n"
           "    store.get_batch(['a', 'b'])")
      .def("get_buffer", &Store::GetBuffer, py::arg("key"), config,
           "get_buffer(key: str | bytes, config=None) -> BufferHandle | None\n\nThe value without a copy when it lies "
           "in "
           "this process's DRAM; None when there is none or it could not be read.\n\n"
           "    numpy.frombuffer(store.get_buffer('key'), dtype='u1')")
      .def("batch_get_buffer", &Store::BatchGetBuffer, py::arg("keys"), config,
           "batch_get_buffer(keys: list, config=None) -> list[BufferHandle | None]\n\nget_buffer() for many keys, in "
           "order.\n\n    store.batch_get_buffer(['a', 'b'])")
      .def("get_into", &Store::GetInto, py::arg("key"), py::arg("buffer_ptr"), py::arg("size"), config,
           "get_into(key: str | bytes, buffer_ptr: int, size: int, config=None) -> int\n\nCopies the value to an "
           "address "
           "of host or NPU memory and returns its size in bytes. -704: no such key, -600: the buffer is smaller than "
           "the "
           "value (nothing is copied), bad argument or not set up, -800 and -900: it could not be transferred.\n\n"
           "    store.get_into('key', array.ctypes.data, array.nbytes)")
      .def("batch_get_into", &Store::BatchGetInto, py::arg("keys"), py::arg("buffer_ptrs"), py::arg("sizes"), config,
           "batch_get_into(keys: list, buffer_ptrs: list[int], sizes: list[int], config=None) -> "
           "list[int]\n\nget_into() "
           "for many keys: one result per key, in order. Lists of different lengths: -600 for each key.\n\n"
           "    store.batch_get_into(['a', 'b'], [address, address + 4096], [4096, 4096])");
}

void BindQueries(StoreClass& store) {
  const py::arg_v force = py::arg("force") = false;
  store
      .def("is_exist", &Store::IsExist, py::arg("key"),
           "is_exist(key: str | bytes) -> int\n\n1: some client has it, 0: nobody has, negative: unknown.\n\n"
           "    store.is_exist('key') == 1")
      .def("batch_is_exist", &Store::BatchIsExist, py::arg("keys"),
           "batch_is_exist(keys: list) -> list[int]\n\nis_exist() for many keys, in order.\n\n"
           "    store.batch_is_exist(['a', 'b'])")
      .def("get_size", &Store::GetSize, py::arg("key"),
           "get_size(key: str | bytes) -> int\n\nSize of the value in bytes; -704: no such key.\n\n"
           "    store.get_size('key')")
      .def(
          "remove", &Store::Remove, py::arg("key"), force,
          "remove(key: str | bytes, force: bool = False) -> int\n\nRemoves the key at all clients. 0, or -704: no such "
          "key. Readers that hold the value keep it, so force changes nothing.\n\n    store.remove('key', force=True)")
      .def("batch_remove", &Store::BatchRemove, py::arg("keys"), force,
           "batch_remove(keys: list, force: bool = False) -> list[int]\n\nremove() for many keys, in order.\n\n"
           "    store.batch_remove(['a', 'b'])")
      .def("remove_all", &Store::RemoveAll, force,
           "remove_all(force: bool = False) -> int\n\nRemoves every key at all clients and returns their number, or a "
           "negative code.\n\n    store.remove_all()")
      .def("register_buffer", &Store::RegisterBuffer, py::arg("buffer_ptr"), py::arg("size"),
           "register_buffer(buffer_ptr: int, size: int) -> int\n\nMakes memory that will be used by *_from and *_into "
           "calls known; they work without it too. 0, also for the same region again (counted); -600 for a null "
           "address, "
           "size 0 or a partial overlap.\n\n    store.register_buffer(array.ctypes.data, array.nbytes)")
      .def("unregister_buffer", &Store::UnregisterBuffer, py::arg("buffer_ptr"),
           "unregister_buffer(buffer_ptr: int) -> int\n\n0, or -600 unless a registered region starts there.\n\n"
           "    store.unregister_buffer(array.ctypes.data)");
}

}  // namespace
}  // namespace mooncake::python

PYBIND11_MODULE(store, module) {
  using namespace mooncake::python;
  module.doc() = "The store: keys and values in the memory tiers of many hosts.";
  py::options options;
  options.disable_function_signatures();
  BindBufferHandle(module);
  BindReplicateConfig(module);
  StoreClass store(
      module, "MooncakeDistributedStore", py::dynamic_attr(),
      "A client of the store. Calls return codes: 0 or a count for success, negative numbers for failures; "
      "wrong argument types raise TypeError. All methods may be called from several threads at once.");
  BindLifeCycle(store);
  BindPut(store);
  BindGet(store);
  BindQueries(store);
  // A store that is still open when the interpreter ends would take its threads into the teardown.
  py::module_::import("atexit").attr("register")(py::cpp_function(&Store::CloseAll));
}
