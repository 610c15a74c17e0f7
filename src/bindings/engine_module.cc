// The extension module mooncake.engine: names, defaults and doc strings.
#include <pybind11/pybind11.h>

#include "bindings/engine.h"
#include "bindings/shared_engine.h"
#include "bindings/transfer_notify.h"

namespace mooncake::python {
namespace {

using EngineClass = py::class_<Engine>;

void BindLifeCycle(EngineClass& engine) {
  engine.def(py::init<>(), "TransferEngine()\n\n    engine = TransferEngine()")
      .def("initialize", &Engine::Initialize, py::arg("local_hostname"), py::arg("metadata_server"),
           py::arg("protocol"), py::arg("device_name"),
           "initialize(local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int\n\n"
           "Opens the engine's ports and transports. 0, or -1 with the reason on stderr; after a failure it can be "
           "called again.\n\n"
           "    local_hostname: 'host' or 'host:port' that peers reach; with a metadata server any name\n"
           "    metadata_server: 'P2PHANDSHAKE', or 'http://host:port/metadata', 'etcd://host:port', "
           "'redis://host:port'\n"
           "    protocol: 'tcp', 'rdma' (tcp where there is no device), 'ascend_rdma' (rdma, and it fails without an "
           "NPU), or '' (whatever there is); names of other hardware are carried by these. NPU memory that is "
           "registered goes over the same ways, through a few host slots, under any of the names. Peers on the same "
           "host use its memory. Unknown names: -1\n"
           "    device_name: RDMA devices that may be used, 'mlx5_0,mlx5_1'; '' for all\n\n"
           "    engine.initialize('192.168.0.7', 'P2PHANDSHAKE', 'rdma', '') == 0")
      .def("initialize_ext", &Engine::InitializeExt, py::arg("local_hostname"), py::arg("metadata_server"),
           py::arg("protocol"), py::arg("device_name"), py::arg("metadata_type"),
           "initialize_ext(local_hostname: str, metadata_server: str, protocol: str, device_name: str, "
           "metadata_type: str) -> int\n\ninitialize() with the kind of the metadata server: 'etcd', 'redis' or "
           "'http'. 0 or -1.\n\n    engine.initialize_ext('node7', '10.0.0.1:2379', 'tcp', '', 'etcd')")
      .def("get_rpc_port", &Engine::RpcPort,
           "get_rpc_port() -> int\n\nThe port that peers address: with P2PHANDSHAKE their target is 'host:port'. 0 "
           "before initialize().\n\n    session = f'{host}:{engine.get_rpc_port()}'")
      .def("get_engine", &Engine::GetEngine,
           "get_engine() -> InnerTransferEngine | None\n\nThe engine, to be shared with others; it lives as long as "
           "one of its owners. None before initialize().\n\n    shared = engine.get_engine()")
      .def("get_engine_ptr", &Engine::EnginePointer,
           "get_engine_ptr() -> int\n\nAddress of the engine in this process, 0 before initialize(). Does not keep it "
           "alive.\n\n    engine.get_engine_ptr()");
}

void BindMemory(EngineClass& engine) {
  const py::arg_v location = py::arg("location") = "*";
  engine
      .def("register_memory", &Engine::RegisterMemory, py::arg("buffer_addr"), py::arg("capacity"), location,
           "register_memory(buffer_addr: int, capacity: int, location: str = '*') -> int\n\nLets peers read and write "
           "`capacity` bytes of this process. 0, also for the identical region again (counted); -7: overlaps another "
           "region in part, -1: other. location: '*', 'cpu:N' (NUMA node) or 'npu:N'.\n\n"
           "    engine.register_memory(array.ctypes.data, array.nbytes) == 0")
      .def("unregister_memory", &Engine::UnregisterMemory, py::arg("buffer_addr"),
           "unregister_memory(buffer_addr: int) -> int\n\nWaits for the transfers that use the region. 0; -3: no "
           "region starts there, -1: other.\n\n    engine.unregister_memory(array.ctypes.data)")
      .def("batch_register_memory", &Engine::BatchRegisterMemory, py::arg("buffer_addresses"), py::arg("capacities"),
           location,
           "batch_register_memory(buffer_addresses: list[int], capacities: list[int], location: str = '*') -> "
           "int\n\nregister_memory() for many regions: all of them or none.\n\n"
           "    engine.batch_register_memory([a, b], [4096, 4096])")
      .def("batch_unregister_memory", &Engine::BatchUnregisterMemory, py::arg("buffer_addresses"),
           "batch_unregister_memory(buffer_addresses: list[int]) -> int\n\nunregister_memory() for many regions.\n\n"
           "    engine.batch_unregister_memory([a, b])")
      .def("allocate_managed_buffer", &Engine::AllocateManagedBuffer, py::arg("length"),
           "allocate_managed_buffer(length: int) -> int\n\nAddress of at least `length` registered bytes that peers "
           "of this host can map; 0: none. Sizes are rounded up to 8 KB, 16 KB, ... 256 MB; larger ones have memory "
           "of their own.\n\n    address = engine.allocate_managed_buffer(1 << 20)")
      .def("free_managed_buffer", &Engine::FreeManagedBuffer, py::arg("buffer_addr"), py::arg("length"),
           "free_managed_buffer(buffer_addr: int, length: int) -> int\n\nGives a managed buffer back, with the length "
           "it was allocated with. 0, or -1: it is none, or has another size; nothing changes then.\n\n"
           "    engine.free_managed_buffer(address, 1 << 20)")
      .def("write_bytes_to_buffer", &Engine::WriteBytes, py::arg("dest_address"), py::arg("src_ptr"), py::arg("length"),
           "write_bytes_to_buffer(dest_address: int, src_ptr: bytes-like, length: int) -> int\n\nCopies the first "
           "`length` bytes to an address of host memory. 0 or -1.\n\n"
           "    engine.write_bytes_to_buffer(address, b'data', 4)")
      .def("read_bytes_from_buffer", &Engine::ReadBytes, py::arg("source_address"), py::arg("length"),
           "read_bytes_from_buffer(source_address: int, length: int) -> bytes\n\nA copy of host memory; b'' on "
           "failure.\n\n    engine.read_bytes_from_buffer(address, 4)");
}

// transfer_sync_write and _read are one function with two names; so are the other pairs.
template <TransferOpcode opcode>
void BindDirection(EngineClass& engine, const char* name, const char* direction) {
  static const std::string sync = std::string("transfer_sync_") + name;
  static const std::string batch_sync = "batch_" + sync;
  static const std::string batch_async = std::string("batch_transfer_async_") + name;
  const auto target = py::arg("target_hostname");
  engine
      .def(
          sync.c_str(),
          [](Engine& self, py::handle peer, py::handle buffer, py::handle address, py::handle length) {
            return self.TransferSync(sync.c_str(), peer, buffer, address, length, opcode, py::none());
          },
          target, py::arg("buffer"), py::arg("peer_buffer_address"), py::arg("length"),
          fmt::format("{}(target_hostname: str, buffer: int, peer_buffer_address: int, length: int) -> int\n\nMoves "
                      "`length` bytes {}. 0: done, -1: failed. The peer's memory must be registered there; the local "
                      "memory need not be, unless it is an NPU's. It is let go of when this returns. Gives up after "
                      "MC_TRANSFER_TIMEOUT seconds (30) and 1 ns for each byte.\n\n"
                      "    engine.{}('192.168.0.8:15000', array.ctypes.data, peer_address, array.nbytes) == 0",
                      sync, direction, sync)
              .c_str())
      .def(
          batch_sync.c_str(),
          [](Engine& self, py::handle peer, py::handle buffers, py::handle addresses, py::handle lengths) {
            return self.BatchTransferSync(batch_sync.c_str(), peer, buffers, addresses, lengths, opcode, py::none());
          },
          target, py::arg("buffers"), py::arg("peer_buffer_addresses"), py::arg("lengths"),
          fmt::format("{}(target_hostname: str, buffers: list[int], peer_buffer_addresses: list[int], lengths: "
                      "list[int]) -> int\n\nMany runs of bytes {} in one call, in no particular order. 0: all done, "
                      "-1: at least one failed, or the lists differ in length.\n\n"
                      "    engine.{}(session, [a, b], [peer_a, peer_b], [4096, 4096]) == 0",
                      batch_sync, direction, batch_sync)
              .c_str())
      .def(
          batch_async.c_str(),
          [](Engine& self, py::handle peer, py::handle buffers, py::handle addresses, py::handle lengths) {
            return self.BatchTransferAsync(batch_async.c_str(), peer, buffers, addresses, lengths, opcode);
          },
          target, py::arg("buffers"), py::arg("peer_buffer_addresses"), py::arg("lengths"),
          fmt::format("{}(target_hostname: str, buffers: list[int], peer_buffer_addresses: list[int], lengths: "
                      "list[int]) -> int\n\nBegins what {}() does. The batch's number, 0: failed. The memory is in use "
                      "until get_batch_transfer_status() or transfer_check_status() says that the batch has ended.\n\n"
                      "    batch = engine.{}(session, [a], [peer_a], [4096])",
                      batch_async, batch_sync, batch_async)
              .c_str());
}

void BindTransfers(EngineClass& engine) {
  const auto target = py::arg("target_hostname");
  const py::arg_v notify = py::arg("notify") = py::none();
  BindDirection<TransferOpcode::kWrite>(engine, "write", "from local memory to the peer's");
  BindDirection<TransferOpcode::kRead>(engine, "read", "from the peer's memory to local memory");
  engine
      .def(
          "transfer_sync",
          [](Engine& self, py::handle peer, py::handle buffer, py::handle address, py::handle length,
             TransferOpcode opcode, py::handle message) {
            return self.TransferSync("transfer_sync", peer, buffer, address, length, opcode, message);
          },
          target, py::arg("buffer"), py::arg("peer_buffer_address"), py::arg("length"), py::arg("opcode"), notify,
          "transfer_sync(target_hostname: str, buffer: int, peer_buffer_address: int, length: int, opcode: "
          "TransferOpcode, notify: TransferNotify = None) -> int\n\ntransfer_sync_read() or _write(); the notification "
          "reaches the peer after the data. With length 0 it is all that is sent, and the addresses do not matter.\n\n"
          "    engine.transfer_sync(session, 0, 0, 0, TransferOpcode.Write, TransferNotify('me', 'ready'))")
      .def(
          "batch_transfer_sync",
          [](Engine& self, py::handle peer, py::handle buffers, py::handle addresses, py::handle lengths,
             TransferOpcode opcode, py::handle message) {
            return self.BatchTransferSync("batch_transfer_sync", peer, buffers, addresses, lengths, opcode, message);
          },
          target, py::arg("buffers"), py::arg("peer_buffer_addresses"), py::arg("lengths"), py::arg("opcode"), notify,
          "batch_transfer_sync(target_hostname: str, buffers: list[int], peer_buffer_addresses: list[int], lengths: "
          "list[int], opcode: TransferOpcode, notify: TransferNotify = None) -> int\n\nbatch_transfer_sync_read() or "
          "_write(); the notification reaches the peer after all of the data.\n\n"
          "    engine.batch_transfer_sync(session, [a], [peer_a], [4096], TransferOpcode.Read)")
      .def(
          "batch_transfer_async",
          [](Engine& self, py::handle peer, py::handle buffers, py::handle addresses, py::handle lengths,
             TransferOpcode opcode) {
            return self.BatchTransferAsync("batch_transfer_async", peer, buffers, addresses, lengths, opcode);
          },
          target, py::arg("buffers"), py::arg("peer_buffer_addresses"), py::arg("lengths"), py::arg("opcode"),
          "batch_transfer_async(target_hostname: str, buffers: list[int], peer_buffer_addresses: list[int], lengths: "
          "list[int], opcode: TransferOpcode) -> int\n\nbatch_transfer_async_read() or _write().\n\n"
          "    batch = engine.batch_transfer_async(session, [a], [peer_a], [4096], TransferOpcode.Read)")
      .def("transfer_submit_write", &Engine::SubmitWrite, target, py::arg("buffer"), py::arg("peer_buffer_address"),
           py::arg("length"),
           "transfer_submit_write(target_hostname: str, buffer: int, peer_buffer_address: int, length: int) -> "
           "int\n\nBegins what transfer_sync_write() does. The batch's number for transfer_check_status(), -1: "
           "failed.\n\n    batch = engine.transfer_submit_write(session, a, peer_a, 4096)")
      .def("transfer_check_status", &Engine::CheckStatus, py::arg("batch_id"),
           "transfer_check_status(batch_id: int) -> int\n\nDoes not wait. 1: done, 0: under way, -1: failed, or no "
           "such batch, -2: out of time. After 1 and -1 the number is free; after -2 it says -2 again. Memory is let "
           "go of after all but 0.\n\n    engine.transfer_check_status(batch)")
      .def("get_batch_transfer_status", &Engine::BatchStatus, py::arg("batch_ids"),
           "get_batch_transfer_status(batch_ids: list[int]) -> int\n\nWaits until all batches are done, then 0; or "
           "until one failed, then -1: the others are canceled. All the numbers are free afterwards, and the memory is "
           "let go of.\n\n    engine.get_batch_transfer_status([first, second]) == 0");
}

void BindPeers(EngineClass& engine) {
  engine
      .def("get_local_topology", &Engine::LocalTopology, py::arg("device_name") = py::none(),
           "get_local_topology(device_name: str = None) -> str\n\nRDMA devices near each location as JSON, "
           "{\"cpu:0\": [[preferred], [others]], ...}; of the named devices only, 'mlx5_0,mlx5_1', if any are. Works "
           "before initialize() too. '' on failure.\n\n    json.loads(engine.get_local_topology())")
      .def("get_first_buffer_address", &Engine::FirstBufferAddress, py::arg("segment_name"),
           "get_first_buffer_address(segment_name: str) -> int\n\nAddress of the first region (the lowest address) "
           "that the peer has registered; 0: none, or the peer does not answer.\n\n"
           "    engine.get_first_buffer_address('192.168.0.8:15000')")
      .def("get_notifies", &Engine::Notifies,
           "get_notifies() -> list[TransferNotify]\n\nNotifications received since the last call; those of one sender "
           "are in order. Does not wait.\n\n    for notify in engine.get_notifies(): print(notify.name, notify.msg)")
      .def("send_probe", &Engine::SendProbe, py::arg("session"),
           "send_probe(session: str) -> int\n\n0: an engine answers there, -1: none within 3 s.\n\n"
           "    engine.send_probe('192.168.0.8:15000') == 0")
      .def("explain", &Engine::Explain, py::arg("target_hostname"), py::arg("buffer"), py::arg("peer_buffer_address"),
           py::arg("length"), py::arg("opcode"),
           "explain(target_hostname: str, buffer: int, peer_buffer_address: int, length: int, opcode: TransferOpcode) "
           "-> str\n\nWhich way such a transfer would take, and why none of the better ones; or why it would be "
           "refused. Moves nothing.\n\n"
           "    print(engine.explain('192.168.0.8:15000', buffer, peer_buffer, 4096, TransferOpcode.Write))");
}

}  // namespace
}  // namespace mooncake::python

PYBIND11_MODULE(engine, module) {
  using namespace mooncake::python;
  using mooncake::TransferOpcode;
  module.doc() = "The transfer engine: moves bytes between registered memory of any two processes.";
  py::options options;
  options.disable_function_signatures();
  BindTransferNotify(module);
  BindSharedEngine(module);
  EngineClass engine(module, "TransferEngine", py::dynamic_attr(),
                     "One end of transfers. Addresses are ints, sizes are bytes. Calls return codes: 0 for success, "
                     "negative numbers for failures, with the reason on stderr; wrong argument types raise TypeError. "
                     "All methods may be called from several threads at once.");
  py::enum_<TransferOpcode> opcode(engine, "TransferOpcode", "Direction of a transfer.");
  opcode.value("Read", TransferOpcode::kRead, "The peer's memory to local memory.")
      .value("Write", TransferOpcode::kWrite, "Local memory to the peer's.");
  module.attr("TransferOpcode") = opcode;
  BindLifeCycle(engine);
  BindMemory(engine);
  BindTransfers(engine);
  BindPeers(engine);
  // An engine that is still open when the interpreter ends would take its threads into the teardown.
  module.attr("_close_all") = py::cpp_function([] {
    Engine::CloseAll();
    SharedEngine::DropAll();
  });
  py::module_::import("atexit").attr("register")(module.attr("_close_all"));
}
