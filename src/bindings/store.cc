// Life cycle of a store, and its data calls.
#include "bindings/store.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "bindings/convert.h"
#include "bindings/failure_log.h"
#include "bindings/process_generation.h"
#include "bindings/replicate_config.h"
#include "bindings/setup_options.h"
#include "common/log.h"

namespace mooncake::python {
namespace {

constexpr int64_t kInvalid = ToInt(ErrorCode::INVALID_PARAMS);

// All stores of the process, under the GIL. Never destroyed, as stores may outlive static objects.
std::unordered_set<Store*>& LiveStores() {
  static auto* stores = new std::unordered_set<Store*>;
  return *stores;
}

bool IsUsable(uint64_t address, uint64_t size) {
  return size == 0 || (address != 0 && address + size > address);
}

// Addresses come from Python as numbers.
void* PointerTo(uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

MemoryRange RangeAt(const RealClient& client, uint64_t address, uint64_t size) {
  if (size == 0) return HostRange{};
  return client.Classify(PointerTo(address), size);
}

std::unexpected<Status> UnusableMemory(uint64_t address, uint64_t size) {
  return Error(ErrorCode::INVALID_PARAMS, "no buffer of {} B can be at {:#x}", size, address);
}

// One failed key stands for the others of its batch in the log.
class BatchReport {
 public:
  explicit BatchReport(const char* call) : call_(call) {}
  int64_t Failed(std::string_view key, const Status& status) {
    if (!std::exchange(reported_, true)) ReportFailure(call_, key, status);
    return CodeOf(status);
  }

 private:
  const char* const call_;
  bool reported_ = false;
};

// What a batch of addresses is made of, converted under the GIL.
struct AddressBatch {
  AddressBatch(py::handle key_list, py::handle address_list, py::handle size_list)
      : keys(key_list), addresses(UnsignedList(address_list, "buffer_ptrs")), sizes(UnsignedList(size_list, "sizes")) {}
  bool Matches() const { return addresses.size() == keys.size() && sizes.size() == keys.size(); }

  KeyList keys;
  std::vector<uint64_t> addresses;
  std::vector<uint64_t> sizes;
};

int64_t PutCode(const Result<void>& result) {
  return result ? 0 : CodeOf(result.error());
}
int64_t GetCode(const Result<ObjectInfo>& result) {
  return result ? static_cast<int64_t>(result->size) : CodeOf(result.error());
}

// Codes of a batch in the order of the caller, with -600 for items whose memory cannot be. `transfer` takes the others.
template <typename Item, typename Transfer, typename Code>
std::vector<int64_t> RunBatch(const char* call, RealClient& client, const AddressBatch& batch, const Transfer& transfer,
                              const Code& code_of) {
  const auto keys = batch.keys.views();
  std::vector<int64_t> codes(keys.size(), kInvalid);
  std::vector<Item> items;
  items.reserve(keys.size());
  BatchReport report(call);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (IsUsable(batch.addresses[i], batch.sizes[i])) {
      items.push_back({keys[i], RangeAt(client, batch.addresses[i], batch.sizes[i])});
    } else {
      report.Failed(keys[i], UnusableMemory(batch.addresses[i], batch.sizes[i]).error());
    }
  }
  const auto results = transfer(std::span<const Item>(items));
  for (size_t i = 0, next = 0; i < keys.size(); ++i) {
    if (!IsUsable(batch.addresses[i], batch.sizes[i])) continue;
    const auto& result = results[next++];
    codes[i] = code_of(result);
    if (!result) report.Failed(keys[i], result.error());
  }
  return codes;
}

std::vector<int64_t> PutItems(const char* call, RealClient& client, std::span<const PutItem> items) {
  std::vector<int64_t> codes;
  BatchReport report(call);
  for (const auto& result : client.BatchPut(items)) {
    if (!result) report.Failed(items[codes.size()].key, result.error());
    codes.push_back(PutCode(result));
  }
  return codes;
}

// Objects and the client whose tiers they may lie in.
struct Fetched {
  std::shared_ptr<RealClient> client;
  std::vector<Result<ObjectBytes>> objects;

  Fetched(std::shared_ptr<RealClient> from, const char* call, const std::vector<std::string>& keys)
      : client(std::move(from)) {
    if (client == nullptr) return;
    const GilRelease release;
    objects = client->BatchGet(keys);
    BatchReport report(call);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!objects[i]) report.Failed(keys[i], objects[i].error());
    }
  }
  ~Fetched() {
    objects.clear();
    LetGo(std::move(client));
  }
  bool Has(size_t i) const { return i < objects.size() && objects[i].has_value(); }
  py::bytes Bytes(size_t i) const { return Has(i) ? CopyToBytes(objects[i]->bytes) : py::bytes(); }
  py::object Handle(size_t i) {
    if (!Has(i)) return py::none();
    return py::cast(std::make_unique<BufferHandle>(client, std::move(*objects[i])));
  }
};

template <typename MakeItem>
py::list ListOf(size_t size, const MakeItem& make_item) {
  py::list list(size);
  for (size_t i = 0; i < size; ++i) list[i] = make_item(i);
  return list;
}

}  // namespace

// --- life cycle ---

Store::Store() {
  LiveStores().insert(this);
}

Store::~Store() {
  LiveStores().erase(this);
  Close();
}

std::shared_ptr<RealClient> Store::Client() const {
  const uint64_t generation = ProcessGeneration();
  std::lock_guard lock(mutex_);
  return generation == generation_ ? client_ : nullptr;
}

std::shared_ptr<RealClient> Store::TakeClient() {
  const uint64_t generation = ProcessGeneration();
  std::lock_guard lock(mutex_);
  return generation == generation_ ? std::move(client_) : nullptr;
}

int64_t Store::Open(const char* call, Result<RealClientOptions> (*read)(const py::args&, const py::kwargs&),
                    const py::args& args, const py::kwargs& kwargs) {
  auto options = read(args, kwargs);
  const uint64_t generation = ProcessGeneration();
  if (options) {
    std::lock_guard lock(mutex_);
    if (std::exchange(generation_, generation) != generation) {
      client_.reset();
      opening_ = false;
    }
    if (client_ != nullptr || opening_) {
      options = Error(ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS, "the store is set up already: close() it first");
    } else {
      opening_ = true;
    }
  }
  if (!options) {
    log::Error("{}: {}", call, options.error().ToString());
    return CodeOf(options.error());
  }
  Result<std::unique_ptr<RealClient>> opened;
  {
    const GilRelease release;
    opened = RealClient::Open(std::move(*options));
    if (!opened) log::Error("{}: {}", call, opened.error().ToString());
  }
  std::lock_guard lock(mutex_);
  opening_ = false;
  if (!opened) return CodeOf(opened.error());
  // What a parent process left behind is not a child's to end.
  client_ = {opened->release(), [generation](RealClient* client) {
               if (generation == ProcessGeneration()) delete client;
             }};
  return 0;
}

int64_t Store::Setup(const py::args& args, const py::kwargs& kwargs) {
  return Open(kSetupCall, ReadSetup, args, kwargs);
}

int64_t Store::SetupP2p(const py::args& args, const py::kwargs& kwargs) {
  return Open(kSetupP2pCall, ReadSetupP2p, args, kwargs);
}

int64_t Store::Close() {
  std::shared_ptr<RealClient> client = TakeClient();
  if (client == nullptr) return 0;
  const GilRelease release;
  const auto closing = std::move(client);
  closing->Close();
  return 0;
}

void Store::CloseAll() {
  std::vector<std::shared_ptr<RealClient>> clients;
  for (Store* store : LiveStores()) {
    if (auto client = store->TakeClient()) clients.push_back(std::move(client));
  }
  const GilRelease release;
  for (auto& client : clients) {
    client->Close();
    client.reset();
  }
}

int64_t Store::HealthCheck() const {
  const auto client = Client();
  if (client == nullptr) return 1;
  return client->health() == ClientHealth::DEGRADED ? 2 : 0;
}

std::string Store::Hostname() const {
  const auto client = Client();
  return client == nullptr ? std::string() : client->hostname();
}

// --- put ---

int64_t Store::Put(py::handle key, py::handle value, py::handle config) {
  CheckConfig(config);
  const std::string_view name = KeyOf(key);
  const PinnedBytes bytes(value, "value");
  const PutItem item{name, bytes.bytes()};
  return WithClient([&](RealClient& client) { return PutItems("put", client, {&item, 1})[0]; }).value_or(kInvalid);
}

int64_t Store::PutParts(py::handle key, const py::args& parts, const py::kwargs& kwargs) {
  for (const auto& [keyword, value] : kwargs) {
    const std::string name = py::str(keyword);
    if (name != "config")
      throw py::type_error(fmt::format("put_parts() got an unexpected keyword argument '{}'", name));
    CheckConfig(value);
  }
  const std::string_view name = KeyOf(key);
  std::vector<PinnedBytes> pinned;
  size_t size = 0;
  for (const py::handle part : parts) size += pinned.emplace_back(part, "part").bytes().size();
  return WithClient([&](RealClient& client) {
           if (pinned.size() == 1) {
             const PutItem item{name, pinned[0].bytes()};
             return PutItems("put_parts", client, {&item, 1})[0];
           }
           const std::unique_ptr<std::byte[]> whole(new std::byte[size]);
           std::byte* end = whole.get();
           for (const PinnedBytes& part : pinned) {
             if (!part.bytes().empty()) std::memcpy(end, part.bytes().data(), part.bytes().size());
             end += part.bytes().size();
           }
           const PutItem item{name, HostRange(whole.get(), size)};
           return PutItems("put_parts", client, {&item, 1})[0];
         })
      .value_or(kInvalid);
}

int64_t Store::PutBatch(py::handle keys, py::handle values, py::handle config) {
  CheckConfig(config);
  const KeyList names(keys);
  const py::object sequence = py::reinterpret_steal<py::object>(PySequence_Tuple(values.ptr()));
  if (!sequence) throw py::error_already_set();
  std::vector<PinnedBytes> pinned;
  for (const py::handle value : py::tuple(sequence)) pinned.emplace_back(value, "value");
  if (pinned.size() != names.size()) return kInvalid;
  return WithClient([&](RealClient& client) {
           std::vector<PutItem> items;
           items.reserve(names.size());
           for (size_t i = 0; i < names.size(); ++i) items.push_back({names.views()[i], pinned[i].bytes()});
           const auto codes = PutItems("put_batch", client, items);
           const auto failed = std::find_if(codes.begin(), codes.end(), [](int64_t code) { return code != 0; });
           return failed == codes.end() ? 0 : *failed;
         })
      .value_or(kInvalid);
}

int64_t Store::PutFrom(py::handle key, py::handle address, py::handle size, py::handle config) {
  CheckConfig(config);
  const std::string_view name = KeyOf(key);
  const uint64_t at = UnsignedOf(address, "buffer_ptr");
  const uint64_t length = UnsignedOf(size, "size");
  if (!IsUsable(at, length)) return kInvalid;
  return WithClient([&](RealClient& client) {
           const PutItem item{name, RangeAt(client, at, length)};
           return PutItems("put_from", client, {&item, 1})[0];
         })
      .value_or(kInvalid);
}

py::list Store::BatchPutFrom(py::handle keys, py::handle addresses, py::handle sizes, py::handle config) {
  CheckConfig(config);
  const AddressBatch batch(keys, addresses, sizes);
  if (!batch.Matches() || batch.keys.size() == 0) return RepeatedInt(kInvalid, batch.keys.size());
  const auto codes = WithClient([&](RealClient& client) {
    return RunBatch<PutItem>(
        "batch_put_from", client, batch, [&](auto items) { return client.BatchPut(items); }, PutCode);
  });
  return codes ? IntList(*codes) : RepeatedInt(kInvalid, batch.keys.size());
}

// --- get ---

py::bytes Store::Get(py::handle key, py::handle config) {
  CheckConfig(config);
  const Fetched fetched(Client(), "get", {std::string(KeyOf(key))});
  return fetched.Bytes(0);
}

py::list Store::GetBatch(py::handle keys, py::handle config) {
  CheckConfig(config);
  const KeyList names(keys);
  const Fetched fetched(names.size() == 0 ? nullptr : Client(), "get_batch", names.Copies());
  return ListOf(names.size(), [&](size_t i) { return fetched.Bytes(i); });
}

py::object Store::GetBuffer(py::handle key, py::handle config) {
  CheckConfig(config);
  return Fetched(Client(), "get_buffer", {std::string(KeyOf(key))}).Handle(0);
}

py::list Store::BatchGetBuffer(py::handle keys, py::handle config) {
  CheckConfig(config);
  const KeyList names(keys);
  Fetched fetched(names.size() == 0 ? nullptr : Client(), "batch_get_buffer", names.Copies());
  return ListOf(names.size(), [&](size_t i) { return fetched.Handle(i); });
}

int64_t Store::GetInto(py::handle key, py::handle address, py::handle size, py::handle config) {
  CheckConfig(config);
  const std::string_view name = KeyOf(key);
  const uint64_t at = UnsignedOf(address, "buffer_ptr");
  const uint64_t length = UnsignedOf(size, "size");
  if (!IsUsable(at, length)) return kInvalid;
  return WithClient([&](RealClient& client) {
           const GetItem item{name, RangeAt(client, at, length)};
           const auto result = std::move(client.BatchGetInto({&item, 1})[0]);
           if (!result) ReportFailure("get_into", name, result.error());
           return GetCode(result);
         })
      .value_or(kInvalid);
}

py::list Store::BatchGetInto(py::handle keys, py::handle addresses, py::handle sizes, py::handle config) {
  CheckConfig(config);
  const AddressBatch batch(keys, addresses, sizes);
  if (!batch.Matches() || batch.keys.size() == 0) return RepeatedInt(kInvalid, batch.keys.size());
  const auto codes = WithClient([&](RealClient& client) {
    return RunBatch<GetItem>(
        "batch_get_into", client, batch, [&](auto items) { return client.BatchGetInto(items); }, GetCode);
  });
  return codes ? IntList(*codes) : RepeatedInt(kInvalid, batch.keys.size());
}

// --- queries and removal ---

int64_t Store::IsExist(py::handle key) {
  const std::string name(KeyOf(key));
  return WithClient([&](RealClient& client) -> int64_t {
           const auto found = std::move(client.BatchExist({&name, 1})[0]);
           if (found) return *found ? 1 : 0;
           ReportFailure("is_exist", name, found.error());
           return CodeOf(found.error());
         })
      .value_or(kInvalid);
}

py::list Store::BatchIsExist(py::handle keys) {
  const std::vector<std::string> names = KeyList(keys).Copies();
  if (names.empty()) return py::list();
  const auto codes = WithClient([&](RealClient& client) {
    std::vector<int64_t> found;
    BatchReport report("batch_is_exist");
    for (const auto& result : client.BatchExist(names)) {
      found.push_back(result ? int64_t{*result} : report.Failed(names[found.size()], result.error()));
    }
    return found;
  });
  return codes ? IntList(*codes) : RepeatedInt(kInvalid, names.size());
}

int64_t Store::GetSize(py::handle key) {
  const std::string name(KeyOf(key));
  return WithClient([&](RealClient& client) {
           const auto size = client.GetSize(name);
           if (size) return static_cast<int64_t>(*size);
           ReportFailure("get_size", name, size.error());
           return CodeOf(size.error());
         })
      .value_or(kInvalid);
}

int64_t Store::Remove(py::handle key, bool) {
  const std::string name(KeyOf(key));
  return WithClient([&](RealClient& client) {
           const auto removed = client.Remove(name);
           if (!removed) ReportFailure("remove", name, removed.error());
           return PutCode(removed);
         })
      .value_or(kInvalid);
}

py::list Store::BatchRemove(py::handle keys, bool) {
  const std::vector<std::string> names = KeyList(keys).Copies();
  const auto codes = WithClient([&](RealClient& client) {
    std::vector<int64_t> removed;
    BatchReport report("batch_remove");
    for (const std::string& name : names) {
      const auto result = client.Remove(name);
      removed.push_back(result ? 0 : report.Failed(name, result.error()));
    }
    return removed;
  });
  return codes ? IntList(*codes) : RepeatedInt(kInvalid, names.size());
}

int64_t Store::RemoveAll(bool) {
  return WithClient([](RealClient& client) {
           const auto count = client.RemoveAll();
           if (count) return static_cast<int64_t>(*count);
           ReportFailure("remove_all", "", count.error());
           return CodeOf(count.error());
         })
      .value_or(kInvalid);
}

// --- registration ---

int64_t Store::RegisterBuffer(py::handle address, py::handle size) {
  const uint64_t at = UnsignedOf(address, "buffer_ptr");
  const uint64_t length = UnsignedOf(size, "size");
  return WithClient([&](RealClient& client) {
           const auto done = client.RegisterBuffer(PointerTo(at), length);
           if (!done) ReportFailure("register_buffer", "", done.error());
           return PutCode(done);
         })
      .value_or(kInvalid);
}

int64_t Store::UnregisterBuffer(py::handle address) {
  const uint64_t at = UnsignedOf(address, "buffer_ptr");
  return WithClient([&](RealClient& client) {
           const auto done = client.UnregisterBuffer(PointerTo(at));
           if (!done) ReportFailure("unregister_buffer", "", done.error());
           return PutCode(done);
         })
      .value_or(kInvalid);
}

}  // namespace mooncake::python
