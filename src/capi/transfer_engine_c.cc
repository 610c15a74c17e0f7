// The C interface on the engine: checks arguments, translates numbers, keeps exceptions in.
#include "capi/transfer_engine_c.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capi/engine_options.h"
#include "common/log.h"
#include "device/npu_runtime.h"
#include "transfer_engine/protocol_names.h"
#include "transfer_engine/topology.h"
#include "transfer_engine/transfer_engine.h"

namespace mooncake {
namespace {

constexpr Duration kNotifyBudget = std::chrono::seconds(10);

// An engine and the segments that were opened through this interface.
struct Handle {
  std::shared_ptr<TransferEngine> engine;
  bool force_tcp = false;
  bool strict_protocol = false;
  std::vector<std::string> transports;  // what installTransport points into
  std::mutex mutex;
  std::unordered_set<SegmentId> segments;
  std::shared_ptr<NpuRuntime> npu;  // in use since ascend_rdma was installed
};
using HandlePtr = std::shared_ptr<Handle>;

// Live engines: a handle that is not in here is somebody's mistake, not memory to look at.
class Handles {
 public:
  static Handles& Instance() {
    static auto* handles = new Handles;  // outlives static destructors that still hold engines
    return *handles;
  }
  transfer_engine_t Add(HandlePtr handle) {
    const std::lock_guard lock(mutex_);
    transfer_engine_t const key = handle.get();
    handles_.emplace(key, std::move(handle));
    return key;
  }
  HandlePtr Find(transfer_engine_t key) {
    const std::lock_guard lock(mutex_);
    const auto found = handles_.find(key);
    return found == handles_.end() ? nullptr : found->second;
  }
  HandlePtr Remove(transfer_engine_t key) {
    const std::lock_guard lock(mutex_);
    const auto node = handles_.extract(key);
    return node.empty() ? nullptr : node.mapped();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<transfer_engine_t, HandlePtr> handles_;
};

std::unexpected<Status> Invalid(const char* what) {
  return Error(ErrorCode::INVALID_PARAMS, "{}", what);
}

Result<HandlePtr> Live(transfer_engine_t engine) {
  auto handle = Handles::Instance().Find(engine);
  if (handle == nullptr) return Invalid("no such engine");
  return handle;
}

// What `work` says, or `failed(status)` after one line in the log; an exception is a failure like any other.
template <typename Work, typename Failed>
auto Guarded(const char* call, const Work& work, const Failed& failed) noexcept -> decltype(failed(Status())) {
  Status status;
  try {
    auto result = work();
    if (result) {
      if constexpr (std::is_void_v<typename decltype(result)::value_type>) {
        return 0;
      } else {
        return *result;
      }
    }
    status = std::move(result).error();
    // A busy batch is an answer: programs ask until it is not.
    if (status.code() != ErrorCode::BATCH_BUSY) log::Warn("{}: {}", call, status.ToString());
    return failed(status);
  } catch (const std::exception& error) {
    log::Error("{}: {}", call, error.what());
  } catch (...) {
    log::Error("{}: unknown exception", call);
  }
  return failed(Status(ErrorCode::INTERNAL_ERROR, "exception"));
}

// Calls that return negative numbers, and those that return positive ones.
template <typename Work>
int Negative(const char* call, const Work& work) noexcept {
  return Guarded(call, work, [](const Status& status) { return NegativeNumber(status); });
}
template <typename Work>
int Positive(const char* call, const Work& work) noexcept {
  return Guarded(call, work, [](const Status& status) { return StatusNumber(status); });
}

std::string TextOf(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

Result<void> CopyText(const std::string& text, char* out, size_t size) {
  if (out == nullptr || size <= text.size())
    return Error(ErrorCode::INVALID_PARAMS, "needs a buffer of {} B, has {} B", text.size() + 1, out ? size : 0);
  std::memcpy(out, text.c_str(), text.size() + 1);
  return {};
}

// The transport that serves a protocol: itself, or the one in its place.
Result<transport_t> TransportFor(Handle& handle, const std::string& protocol) {
  // The engine has the bridge in any case; naming it asks for an NPU.
  if (protocol == kBridgeProtocol) {
    MC_TRY(CheckBridgeBuilt());
    auto npu = MC_TRY(OpenNpuRuntime());
    const std::lock_guard lock(handle.mutex);
    handle.npu = std::move(npu);
  }
  std::vector<std::string> names = {protocol};
  if (!handle.strict_protocol) {
    if (const auto others = ProtocolsOf(protocol, handle.force_tcp))
      names.insert(names.end(), others->begin(), others->end());
  }
  for (const std::string& name : names) {
    const auto found = std::find(handle.transports.begin(), handle.transports.end(), name);
    if (found == handle.transports.end()) continue;
    if (name != protocol) log::Warn("installTransport: {} serves in place of {}", name, protocol);
    return transport_t{&*found};
  }
  return Error(ErrorCode::NOT_SUPPORTED_TRANSPORT, "this engine has no transport '{}'", protocol);
}

Result<HandlePtr> Open(const char* metadata, const char* name, const char* host, uint64_t port) {
  if (port > UINT16_MAX) return Error(ErrorCode::INVALID_PARAMS, "port {}", port);
  EngineArguments arguments;
  arguments.metadata = metadata == nullptr ? "P2PHANDSHAKE" : metadata;
  arguments.local_name = TextOf(name);
  TransferEngineOptions options = MC_TRY(EngineOptions(arguments));
  if (options.legacy_port_binding) {
    if (options.bind_address.empty()) options.bind_address = TextOf(host);
    options.control_port = static_cast<uint16_t>(port);
  }
  auto handle = std::make_shared<Handle>();
  handle->force_tcp = options.force_tcp;
  handle->strict_protocol = std::exchange(options.strict_protocol, false);  // no protocol was named so far
  handle->engine = MC_TRY(TransferEngine::Open(std::move(options)));
  handle->transports = handle->engine->TransportNames();
  return handle;
}

Result<segment_id_t> OpenSegmentOf(transfer_engine_t engine, const char* name, bool refresh) {
  const HandlePtr handle = MC_TRY(Live(engine));
  if (name == nullptr) return Invalid("segment name is null");
  const SegmentId id = MC_TRY(handle->engine->OpenSegment(name));
  if (id > INT32_MAX) return Error(ErrorCode::TOO_MANY_REQUESTS, "segment number {} does not fit", id);
  if (refresh) (void)MC_TRY(handle->engine->GetSegment(id, /*refresh=*/true));
  const std::lock_guard lock(handle->mutex);
  handle->segments.insert(id);
  return static_cast<segment_id_t>(id);
}

Result<SegmentId> SegmentOf(int64_t id) {
  if (id < 0) return Error(ErrorCode::INVALID_PARAMS, "segment {}", id);
  return static_cast<SegmentId>(id);
}

Result<std::vector<TransferRequest>> RequestsOf(const transfer_request* entries, size_t count) {
  if (entries == nullptr && count != 0) return Invalid("requests are null");
  std::vector<TransferRequest> requests;
  requests.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const transfer_request& entry = entries[i];
    if (entry.opcode != OPCODE_READ && entry.opcode != OPCODE_WRITE)
      return Error(ErrorCode::INVALID_PARAMS, "request {} has opcode {}", i, entry.opcode);
    if (entry.source == nullptr && entry.length != 0)
      return Error(ErrorCode::INVALID_PARAMS, "request {} has no local memory", i);
    requests.push_back({.opcode = static_cast<TransferOpcode>(entry.opcode),
                        .local = entry.source,
                        .target = MC_TRY(SegmentOf(entry.target_id)),
                        .target_address = entry.target_offset,
                        .length = entry.length});
  }
  return requests;
}

Result<TransferNotify> NotifyOf(const notify_msg_t& message) {
  if (message.name == nullptr || message.msg == nullptr) return Invalid("a notification without name or text");
  return TransferNotify{message.name, message.msg};
}

// A time-out counts as success in programs that only ask for failure.
void Report(const TransferStatus& from, transfer_status& to) {
  const bool lost = from.state == TransferState::kTimeout || from.state == TransferState::kCanceled;
  to.status = static_cast<int>(lost ? TransferState::kFailed : from.state);
  to.transferred_bytes = from.transferred_bytes;
}

Result<std::vector<void*>> PointersOf(void** list, size_t count) {
  if (list == nullptr && count != 0) return Invalid("addresses are null");
  return std::vector<void*>(list, list + count);
}

char* CopyOf(const std::string& text) {
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

Result<notify_msg_t*> CopyOf(const std::vector<TransferNotify>& notifies) {
  if (notifies.empty()) return nullptr;
  auto* const messages = static_cast<notify_msg_t*>(std::calloc(notifies.size(), sizeof(notify_msg_t)));
  bool complete = messages != nullptr;
  for (size_t i = 0; complete && i < notifies.size(); ++i) {
    messages[i] = {CopyOf(notifies[i].name), CopyOf(notifies[i].message)};
    complete = messages[i].name != nullptr && messages[i].msg != nullptr;
  }
  if (complete) return messages;
  freeNotifsMsgBuf(messages, static_cast<int>(notifies.size()));
  return Error(ErrorCode::INTERNAL_ERROR, "no memory for {} notifications", notifies.size());
}

}  // namespace
}  // namespace mooncake

using namespace mooncake;

// --- engine ---

transfer_engine_t createTransferEngine(const char* metadata_conn_string, const char* local_server_name,
                                       const char* ip_or_host_name, uint64_t rpc_port, int /*auto_discover*/) {
  return Guarded(
      __func__,
      [&]() -> Result<transfer_engine_t> {
        return Handles::Instance().Add(
            MC_TRY(Open(metadata_conn_string, local_server_name, ip_or_host_name, rpc_port)));
      },
      [](const Status&) -> transfer_engine_t { return nullptr; });
}

void destroyTransferEngine(transfer_engine_t engine) {
  Negative(__func__, [&]() -> Result<void> {
    if (engine != nullptr && Handles::Instance().Remove(engine) == nullptr) return Invalid("no such engine");
    return {};
  });
}

int getLocalIpAndPort(transfer_engine_t engine, char* buf_out, size_t buf_len) {
  return Negative(__func__, [&]() -> Result<void> {
    return CopyText(MC_TRY(Live(engine))->engine->local_name(), buf_out, buf_len);
  });
}

int discoverTopology(transfer_engine_t engine, char* buf_out, size_t buf_len) {
  return Negative(__func__, [&]() -> Result<void> {
    return CopyText(MC_TRY(Live(engine))->engine->TopologyJson(), buf_out, buf_len);
  });
}

transport_t installTransport(transfer_engine_t engine, const char* proto, void** args) {
  return Guarded(
      __func__,
      [&]() -> Result<transport_t> {
        const HandlePtr handle = MC_TRY(Live(engine));
        if (args != nullptr && args[0] != nullptr) MC_TRY(Topology::Parse(static_cast<const char*>(args[0])));
        if (proto == nullptr) return Invalid("transport name is null");
        return TransportFor(*handle, proto);
      },
      [](const Status&) -> transport_t { return nullptr; });
}

int uninstallTransport(transfer_engine_t engine, const char* proto) {
  return Negative(__func__, [&]() -> Result<void> {
    MC_TRY(Live(engine));
    if (proto == nullptr) return Invalid("transport name is null");
    return {};
  });
}

// --- segments ---

segment_id_t openSegment(transfer_engine_t engine, const char* segment_name) {
  return Guarded(
      __func__, [&] { return OpenSegmentOf(engine, segment_name, /*refresh=*/false); },
      [](const Status& status) -> segment_id_t { return NegativeNumber(status); });
}

segment_id_t openSegmentNoCache(transfer_engine_t engine, const char* segment_name) {
  return Guarded(
      __func__, [&] { return OpenSegmentOf(engine, segment_name, /*refresh=*/true); },
      [](const Status& status) -> segment_id_t { return NegativeNumber(status); });
}

int closeSegment(transfer_engine_t engine, segment_id_t segment_id) {
  return Negative(__func__, [&]() -> Result<void> {
    const HandlePtr handle = MC_TRY(Live(engine));
    const SegmentId id = MC_TRY(SegmentOf(segment_id));
    MC_TRY(handle->engine->CloseSegment(id));
    if (handle->engine->GetSegment(id)) return {};  // opened more often
    const std::lock_guard lock(handle->mutex);
    handle->segments.erase(id);
    return {};
  });
}

int removeLocalSegment(transfer_engine_t engine, const char* segment_name) {
  return Negative(__func__, [&]() -> Result<void> {
    const HandlePtr handle = MC_TRY(Live(engine));
    if (TextOf(segment_name) != handle->engine->local_name())
      return Error(ErrorCode::SEGMENT_NOT_FOUND, "'{}' is not this engine's segment", TextOf(segment_name));
    return {};
  });
}

int syncSegmentCache(transfer_engine_t engine) {
  return Positive(__func__, [&]() -> Result<void> {
    const HandlePtr handle = MC_TRY(Live(engine));
    std::vector<SegmentId> segments;
    {
      const std::lock_guard lock(handle->mutex);
      segments.assign(handle->segments.begin(), handle->segments.end());
    }
    Result<void> first;
    for (const SegmentId id : segments) {
      const auto segment = handle->engine->GetSegment(id, /*refresh=*/true);
      if (!segment && first) first = std::unexpected(segment.error());
    }
    return first;
  });
}

// --- memory ---

int registerLocalMemory(transfer_engine_t engine, void* addr, size_t length, const char* location,
                        int remote_accessible) {
  return Negative(__func__, [&]() -> Result<void> {
    const HandlePtr handle = MC_TRY(Live(engine));
    if (addr == nullptr) return Invalid("address is null");
    const auto access = remote_accessible != 0 ? RegionAccess::kOpen : RegionAccess::kLocal;
    return handle->engine->RegisterMemory(addr, length, MC_TRY(RegionOptionsOf(TextOf(location), access)));
  });
}

int unregisterLocalMemory(transfer_engine_t engine, void* addr) {
  return Negative(__func__, [&]() -> Result<void> { return MC_TRY(Live(engine))->engine->UnregisterMemory(addr); });
}

int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t* buffer_list, size_t buffer_len,
                             const char* location) {
  return Negative(__func__, [&]() -> Result<void> {
    const HandlePtr handle = MC_TRY(Live(engine));
    if (buffer_list == nullptr && buffer_len != 0) return Invalid("buffers are null");
    std::vector<HostRange> ranges;
    for (size_t i = 0; i < buffer_len; ++i) {
      if (buffer_list[i].addr == nullptr) return Invalid("a buffer is null");
      ranges.emplace_back(static_cast<std::byte*>(buffer_list[i].addr), buffer_list[i].length);
    }
    return handle->engine->RegisterMemoryBatch(ranges, MC_TRY(RegionOptionsOf(TextOf(location))));
  });
}

int unregisterLocalMemoryBatch(transfer_engine_t engine, void** addr_list, size_t addr_len) {
  return Negative(__func__, [&]() -> Result<void> {
    const HandlePtr handle = MC_TRY(Live(engine));
    return handle->engine->UnregisterMemoryBatch(MC_TRY(PointersOf(addr_list, addr_len)));
  });
}

// --- transfers ---

batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size) {
  return Guarded(
      __func__, [&]() -> Result<batch_id_t> { return MC_TRY(Live(engine))->engine->AllocateBatch(batch_size); },
      [](const Status&) -> batch_id_t { return INVALID_BATCH; });
}

int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request* entries, size_t count) {
  return Positive(__func__, [&]() -> Result<void> {
    const HandlePtr handle = MC_TRY(Live(engine));
    return handle->engine->Submit(batch_id, MC_TRY(RequestsOf(entries, count)));
  });
}

int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request* entries,
                             size_t count, notify_msg_t notify_msg) {
  return Positive(__func__, [&]() -> Result<void> {
    const HandlePtr handle = MC_TRY(Live(engine));
    const auto requests = MC_TRY(RequestsOf(entries, count));
    if (requests.empty()) return Invalid("a notification needs a request that says whom");
    SubmitOptions options;
    options.notify = MC_TRY(NotifyOf(notify_msg));
    return handle->engine->Submit(batch_id, requests, std::move(options));
  });
}

int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id, struct transfer_status* status) {
  return Positive(__func__, [&]() -> Result<void> {
    const HandlePtr handle = MC_TRY(Live(engine));
    if (status == nullptr) return Invalid("status is null");
    Report(MC_TRY(handle->engine->TaskStatus(batch_id, task_id)), *status);
    return {};
  });
}

int getBatchTransferStatus(transfer_engine_t engine, batch_id_t batch_id, struct transfer_status* status) {
  return Positive(__func__, [&]() -> Result<void> {
    const HandlePtr handle = MC_TRY(Live(engine));
    if (status == nullptr) return Invalid("status is null");
    Report(MC_TRY(handle->engine->BatchStatus(batch_id)), *status);
    return {};
  });
}

int freeBatchID(transfer_engine_t engine, batch_id_t batch_id) {
  return Positive(__func__, [&]() -> Result<void> { return MC_TRY(Live(engine))->engine->FreeBatch(batch_id); });
}

// --- notifications ---

notify_msg_t* getNotifsFromEngine(transfer_engine_t engine, int* size) {
  if (size != nullptr) *size = 0;
  return Guarded(
      __func__,
      [&]() -> Result<notify_msg_t*> {
        const HandlePtr handle = MC_TRY(Live(engine));
        if (size == nullptr) return Invalid("size is null");
        const auto notifies = handle->engine->GetNotifies();
        auto* const messages = MC_TRY(CopyOf(notifies));
        *size = static_cast<int>(notifies.size());
        return messages;
      },
      [](const Status&) -> notify_msg_t* { return nullptr; });
}

int freeNotifsMsgBuf(notify_msg_t* msg, int size) {
  for (int i = 0; msg != nullptr && i < size; ++i) {
    std::free(msg[i].name);
    std::free(msg[i].msg);
  }
  std::free(msg);
  return 0;
}

int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg) {
  return Negative(__func__, [&]() -> Result<void> {
    const HandlePtr handle = MC_TRY(Live(engine));
    const TransferNotify notify = MC_TRY(NotifyOf(notify_msg));
    return handle->engine->SendNotify(target_id, notify, Deadline::After(kNotifyBudget));
  });
}
