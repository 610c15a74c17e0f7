// Life cycle of an engine, and its calls.
#include "bindings/engine.h"

#include <cstring>
#include <unordered_set>
#include <utility>

#include "bindings/convert.h"
#include "bindings/failure_log.h"
#include "bindings/gil.h"
#include "bindings/process_generation.h"
#include "bindings/transfer_notify.h"
#include "common/log.h"
#include "transfer_engine/protocol_names.h"
#include "transfer_engine/topology.h"

namespace mooncake::python {
namespace {

constexpr Duration kExitBudget = std::chrono::seconds(10);

// All engines of the process, under the GIL. Never destroyed, as engines may outlive static objects.
std::unordered_set<Engine*>& LiveEngines() {
  static auto* engines = new std::unordered_set<Engine*>;
  return *engines;
}

// 0, or the number of the failure.
int64_t NumberOf(const Result<void>& result) {
  return result ? 0 : NegativeNumber(result.error());
}
// 0, or -1 for a transfer that failed, whatever the reason.
int64_t DoneOrFailed(const Result<void>& result) {
  return result ? 0 : -1;
}

std::byte* PointerTo(uint64_t address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// Numbers of batches: what is no such number (-1 of a submission that failed) becomes 0, which no batch has.
uint64_t BatchNumberOf(py::handle object) {
  if (!PyLong_Check(object.ptr())) RaiseWrongType("batch_id", "an int", object);
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  return overflow != 0 || number < 0 ? 0 : static_cast<uint64_t>(number);
}

std::vector<uint64_t> BatchNumbersOf(py::handle sequence) {
  const auto objects = py::reinterpret_steal<py::object>(PySequence_Tuple(sequence.ptr()));
  if (!objects) throw py::error_already_set();
  std::vector<uint64_t> numbers;
  for (const py::handle object : objects) numbers.push_back(BatchNumberOf(object));
  return numbers;
}

TransferCall CallOf(py::handle target, py::handle buffer, py::handle peer, py::handle length, TransferOpcode opcode,
                    py::handle notify) {
  return {
      .target = TextOf(target, "target_hostname"),
      .opcode = opcode,
      .pieces = {{UnsignedOf(buffer, "buffer"), UnsignedOf(peer, "peer_buffer_address"), UnsignedOf(length, "length")}},
      .notify = NotifyOf(notify)};
}

// INVALID_PARAMS for lists of different lengths.
Result<TransferCall> BatchCallOf(py::handle target, py::handle buffers, py::handle peers, py::handle lengths,
                                 TransferOpcode opcode, py::handle notify) {
  TransferCall call{.target = TextOf(target, "target_hostname"), .opcode = opcode, .notify = NotifyOf(notify)};
  const auto local = UnsignedList(buffers, "buffers");
  const auto remote = UnsignedList(peers, "peer_buffer_addresses");
  const auto bytes = UnsignedList(lengths, "lengths");
  if (local.size() != remote.size() || local.size() != bytes.size())
    return Error(ErrorCode::INVALID_PARAMS, "{} buffers, {} peer addresses and {} lengths", local.size(), remote.size(),
                 bytes.size());
  call.pieces.reserve(local.size());
  for (size_t i = 0; i < local.size(); ++i) call.pieces.push_back({local[i], remote[i], bytes[i]});
  return call;
}

Result<HostRange> HostMemory(EngineSession& session, uint64_t address, uint64_t length) {
  if (address == 0 || address + length < address)
    return Error(ErrorCode::INVALID_PARAMS, "no memory of {} B can be at {:#x}", length, address);
  if (session.IsDeviceMemory(address, length))
    return Error(ErrorCode::INVALID_PARAMS, "{:#x} is memory of an NPU", address);
  return HostRange(PointerTo(address), length);
}

}  // namespace

// --- life cycle ---

Engine::Engine() {
  LiveEngines().insert(this);
}

Engine::~Engine() {
  LiveEngines().erase(this);
  auto session = TakeSession();
  if (session == nullptr) return;
  const GilRelease release;
  session.reset();
}

std::shared_ptr<EngineSession> Engine::Session() const {
  const uint64_t generation = ProcessGeneration();
  const std::lock_guard lock(mutex_);
  return generation == generation_ ? session_ : nullptr;
}

std::shared_ptr<EngineSession> Engine::TakeSession() {
  const uint64_t generation = ProcessGeneration();
  const std::lock_guard lock(mutex_);
  return generation == generation_ ? std::move(session_) : nullptr;
}

int64_t Engine::Initialize(py::handle local_hostname, py::handle metadata_server, py::handle protocol,
                           py::handle device_name) {
  return Open("initialize", {.local_name = TextOf(local_hostname, "local_hostname"),
                             .metadata = TextOf(metadata_server, "metadata_server"),
                             .protocol = TextOf(protocol, "protocol"),
                             .devices = TextOf(device_name, "device_name")});
}

int64_t Engine::InitializeExt(py::handle local_hostname, py::handle metadata_server, py::handle protocol,
                              py::handle device_name, py::handle metadata_type) {
  return Open("initialize_ext", {.local_name = TextOf(local_hostname, "local_hostname"),
                                 .metadata = TextOf(metadata_server, "metadata_server"),
                                 .metadata_type = TextOf(metadata_type, "metadata_type"),
                                 .protocol = TextOf(protocol, "protocol"),
                                 .devices = TextOf(device_name, "device_name")});
}

int64_t Engine::Open(const char* call, const EngineArguments& arguments) {
  const uint64_t generation = ProcessGeneration();
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(generation_, generation) != generation) {
      session_.reset();  // its deleter knows that it is the parent's
      opening_ = false;
    }
    if (session_ != nullptr || opening_) {
      log::Error("{}: the engine is initialized already", call);
      return -1;
    }
    opening_ = true;
  }
  const auto open = [&]() -> Result<std::shared_ptr<EngineSession>> {
    return EngineSession::Open(MC_TRY(EngineOptions(arguments)));
  };
  Result<std::shared_ptr<EngineSession>> opened;
  {
    const GilRelease release;
    opened = open();
    if (!opened) log::Error("{}: {}", call, opened.error().ToString());
  }
  const std::lock_guard lock(mutex_);
  opening_ = false;
  if (!opened) return -1;
  // What a parent process left behind is not a child's to end: there it is kept for ever.
  session_ = {opened->get(), [generation, kept = new std::shared_ptr<EngineSession>(*opened)](EngineSession*) {
                if (generation == ProcessGeneration()) delete kept;
              }};
  return 0;
}

int64_t Engine::RpcPort() const {
  const auto session = Session();
  return session == nullptr ? 0 : session->engine().control_port();
}

void Engine::CloseAll() {
  std::vector<std::shared_ptr<EngineSession>> sessions;
  for (Engine* engine : LiveEngines()) {
    if (auto session = engine->TakeSession()) sessions.push_back(std::move(session));
  }
  const GilRelease release;
  const Deadline deadline = Deadline::After(kExitBudget);
  for (auto& session : sessions) {
    // A call that does not end keeps its engine until the process is gone.
    if (session->Close(deadline)) {
      session.reset();
    } else {
      new std::shared_ptr<EngineSession>(std::move(session));
    }
  }
}

template <typename Work>
auto Engine::Run(const char* call, const std::string& about, const Work& work) const
    -> decltype(work(std::declval<EngineSession&>(), std::declval<const Interrupted&>())) {
  using Answer = decltype(work(std::declval<EngineSession&>(), std::declval<const Interrupted&>()));
  auto session = Session();
  Answer answer = Error(ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS, "the engine is not initialized");
  bool raised = false;
  {
    GilRelease release;
    if (const auto last_perhaps = std::move(session); last_perhaps != nullptr) {
      answer = work(*last_perhaps, [&] { return raised = release.SignalRaised(); });
    }
    if (!answer && !raised) ReportFailure(call, about, answer.error());
  }
  if (raised) throw py::error_already_set();
  return answer;
}

// --- memory ---

int64_t Engine::RegisterMemory(py::handle address, py::handle capacity, py::handle location) {
  const uint64_t at = UnsignedOf(address, "buffer_addr");
  const uint64_t length = UnsignedOf(capacity, "capacity");
  const std::string where = TextOf(location, "location");
  return NumberOf(Run("register_memory", "",
                      [&](EngineSession& session, const Interrupted&) { return session.Register(at, length, where); }));
}

int64_t Engine::UnregisterMemory(py::handle address) {
  const uint64_t at = UnsignedOf(address, "buffer_addr");
  return NumberOf(
      Run("unregister_memory", "", [&](EngineSession& session, const Interrupted&) { return session.Unregister(at); }));
}

int64_t Engine::BatchRegisterMemory(py::handle addresses, py::handle capacities, py::handle location) {
  const auto all = UnsignedList(addresses, "buffer_addresses");
  const auto lengths = UnsignedList(capacities, "capacities");
  const std::string where = TextOf(location, "location");
  return NumberOf(Run("batch_register_memory", "", [&](EngineSession& session, const Interrupted&) {
    return session.RegisterAll(all, lengths, where);
  }));
}

int64_t Engine::BatchUnregisterMemory(py::handle addresses) {
  const auto all = UnsignedList(addresses, "buffer_addresses");
  return NumberOf(Run("batch_unregister_memory", "",
                      [&](EngineSession& session, const Interrupted&) { return session.UnregisterAll(all); }));
}

uint64_t Engine::AllocateManagedBuffer(py::handle length) {
  const uint64_t bytes = UnsignedOf(length, "length");
  const auto buffer = Run("allocate_managed_buffer", "", [&](EngineSession& session, const Interrupted&) {
    return session.buffers().Allocate(bytes);
  });
  return buffer ? reinterpret_cast<uint64_t>(*buffer) : 0;
}

int64_t Engine::FreeManagedBuffer(py::handle address, py::handle length) {
  const uint64_t at = UnsignedOf(address, "buffer_addr");
  const uint64_t bytes = UnsignedOf(length, "length");
  return NumberOf(Run("free_managed_buffer", "", [&](EngineSession& session, const Interrupted&) {
    return session.buffers().Free(PointerTo(at), bytes);
  }));
}

int64_t Engine::WriteBytes(py::handle address, py::handle bytes, py::handle length) {
  const uint64_t at = UnsignedOf(address, "dest_address");
  const PinnedBytes source(bytes, "src_ptr");
  const uint64_t count = UnsignedOf(length, "length");
  return NumberOf(Run("write_bytes_to_buffer", "", [&](EngineSession& session, const Interrupted&) -> Result<void> {
    if (count > source.bytes().size())
      return Error(ErrorCode::INVALID_PARAMS, "{} B of {} B", count, source.bytes().size());
    const HostRange target = MC_TRY(HostMemory(session, at, count));
    if (count != 0) std::memcpy(target.data(), source.bytes().data(), count);
    return {};
  }));
}

py::bytes Engine::ReadBytes(py::handle address, py::handle length) {
  const uint64_t at = UnsignedOf(address, "source_address");
  const uint64_t count = UnsignedOf(length, "length");
  const auto source = Run("read_bytes_from_buffer", "",
                          [&](EngineSession& session, const Interrupted&) { return HostMemory(session, at, count); });
  return source ? CopyToBytes(*source) : py::bytes();
}

// --- transfers ---

int64_t Engine::TransferSync(const char* name, py::handle target, py::handle buffer, py::handle peer, py::handle length,
                             TransferOpcode opcode, py::handle notify) {
  const TransferCall call = CallOf(target, buffer, peer, length, opcode, notify);
  return DoneOrFailed(Run(name, call.target, [&](EngineSession& session, const Interrupted& interrupted) {
    return session.Transfer(call, interrupted);
  }));
}

int64_t Engine::BatchTransferSync(const char* name, py::handle target, py::handle buffers, py::handle peers,
                                  py::handle lengths, TransferOpcode opcode, py::handle notify) {
  const auto call = BatchCallOf(target, buffers, peers, lengths, opcode, notify);
  const std::string about = TextOf(target, "target_hostname");
  return DoneOrFailed(Run(name, about, [&](EngineSession& session, const Interrupted& interrupted) -> Result<void> {
    if (!call) return std::unexpected(call.error());
    return session.Transfer(*call, interrupted);
  }));
}

int64_t Engine::SubmitWrite(py::handle target, py::handle buffer, py::handle peer, py::handle length) {
  const TransferCall call = CallOf(target, buffer, peer, length, TransferOpcode::kWrite, py::none());
  const auto number = Run("transfer_submit_write", call.target,
                          [&](EngineSession& session, const Interrupted&) { return session.Begin(call); });
  return number ? static_cast<int64_t>(*number) : -1;
}

uint64_t Engine::BatchTransferAsync(const char* name, py::handle target, py::handle buffers, py::handle peers,
                                    py::handle lengths, TransferOpcode opcode) {
  const auto call = BatchCallOf(target, buffers, peers, lengths, opcode, py::none());
  const std::string about = TextOf(target, "target_hostname");
  return Run(name, about,
             [&](EngineSession& session, const Interrupted&) -> Result<uint64_t> {
               if (!call) return std::unexpected(call.error());
               return session.Begin(*call);
             })
      .value_or(0);
}

int64_t Engine::CheckStatus(py::handle number) {
  const uint64_t id = BatchNumberOf(number);
  const auto done =
      Run("transfer_check_status", "", [&](EngineSession& session, const Interrupted&) { return session.Check(id); });
  if (done) return *done ? 1 : 0;
  return done.error().code() == ErrorCode::TRANSFER_TIMEOUT ? -2 : -1;
}

int64_t Engine::BatchStatus(py::handle numbers) {
  const auto all = BatchNumbersOf(numbers);
  return DoneOrFailed(Run("get_batch_transfer_status", "", [&](EngineSession& session, const Interrupted& interrupted) {
    return session.WaitAll(all, interrupted);
  }));
}

// --- peers ---

py::str Engine::LocalTopology(py::handle device_name) const {
  const std::string devices = device_name.is_none() ? std::string() : TextOf(device_name, "device_name");
  const auto session = Session();
  if (session != nullptr && devices.empty()) return session->engine().TopologyJson();
  Result<std::string> text;
  {
    const GilRelease release;
    const auto discover = [&]() -> Result<std::string> {
      return MC_TRY(Topology::Discover(DeviceList(devices))).ToJson();
    };
    text = discover();
    if (!text) ReportFailure("get_local_topology", devices, text.error());
  }
  return text.value_or(std::string());
}

uint64_t Engine::FirstBufferAddress(py::handle segment_name) {
  const std::string name = TextOf(segment_name, "segment_name");
  return Run("get_first_buffer_address", name,
             [&](EngineSession& session, const Interrupted&) { return session.FirstBufferAddress(name); })
      .value_or(0);
}

py::list Engine::Notifies() {
  const auto session = Session();
  return session == nullptr ? py::list() : NotifyList(session->engine().GetNotifies());
}

int64_t Engine::SendProbe(py::handle session_name) {
  const std::string name = TextOf(session_name, "session");
  return DoneOrFailed(
      Run("send_probe", name, [&](EngineSession& session, const Interrupted&) { return session.Probe(name); }));
}

std::string Engine::Explain(py::handle target, py::handle buffer, py::handle peer, py::handle length,
                            TransferOpcode opcode) {
  const TransferCall call = CallOf(target, buffer, peer, length, opcode, py::none());
  const auto text =
      Run("explain", call.target, [&](EngineSession& session, const Interrupted&) { return session.Explain(call); });
  return text ? *text : text.error().ToString();
}

py::object Engine::GetEngine() const {
  const auto session = Session();
  if (session == nullptr) return py::none();
  return py::cast(std::make_unique<SharedEngine>(session->Share()));
}

uint64_t Engine::EnginePointer() const {
  const auto session = Session();
  return session == nullptr ? 0 : reinterpret_cast<uint64_t>(&session->engine());
}

}  // namespace mooncake::python
