// Keys of exported pages, and the memory behind keys of others.
#include "device/acl/acl_ipc.h"

#include <array>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace mooncake::acl {

Result<void> AclIpc::Available() const {
  const FunctionTable& functions = devices_.functions();
  const std::pair<bool, const char*> needed[] = {
      {functions.IpcMemGetExportKey != nullptr, "aclrtIpcMemGetExportKey"},
      {functions.IpcMemSetImportPid != nullptr, "aclrtIpcMemSetImportPid"},
      {functions.IpcMemImportByKey != nullptr, "aclrtIpcMemImportByKey"},
      {functions.IpcMemClose != nullptr, "aclrtIpcMemClose"},
      {functions.DeviceGetBareTgid != nullptr, "aclrtDeviceGetBareTgid"},
      {functions.PointerGetAttributes != nullptr, "aclrtPointerGetAttributes"},
  };
  std::string missing;
  for (const auto& [present, symbol] : needed) {
    if (!present) missing += missing.empty() ? symbol : fmt::format(", {}", symbol);
  }
  if (missing.empty()) return {};
  return Error(ErrorCode::NOT_IMPLEMENTED,
               "NPU memory is not shared between processes, which takes CANN 8.5 or later: {} lacks {}",
               devices_.library().path, missing);
}

Result<int32_t> AclIpc::OwnPid() {
  int32_t pid = 0;
  const AclError rc = devices_.functions().DeviceGetBareTgid(&pid);
  if (rc == kSuccess) return pid;
  return std::unexpected(MakeStatus(devices_.functions(), ErrorCode::INTERNAL_ERROR, rc, "aclrtDeviceGetBareTgid"));
}

// --- exports ---

Result<AclIpc::Pages> AclIpc::PagesAround(AscendUnifiedPointer at, size_t size) const {
  const ScopedContext scope(devices_.functions(), MC_TRY(devices_.ContextOf(at.device_id)));
  PointerAttributes attributes{};
  AclError rc = scope.error();
  if (rc == kSuccess) rc = devices_.functions().PointerGetAttributes(ToPointer(at), &attributes);
  if (rc != kSuccess) {
    return std::unexpected(devices_.Failed(at.device_id, ErrorCode::INTERNAL_ERROR, rc, "aclrtPointerGetAttributes"));
  }
  const uint64_t page = attributes.page_size;
  if (attributes.location.type != kLocationDevice || page == 0 || (page & (page - 1)) != 0) {
    return Error(ErrorCode::INVALID_PARAMS, "memory {:#x} is not on an NPU, or its pages are unknown ({} B)",
                 static_cast<uintptr_t>(at.device_ptr), page);
  }
  const auto begin = static_cast<uintptr_t>(at.device_ptr);
  return Pages{begin / page * page, (begin + size + page - 1) / page * page};
}

AclIpc::Exports::iterator AclIpc::Touching(const Pages& pages) {
  auto found = exports_.lower_bound(pages.end);
  if (found == exports_.begin()) return exports_.end();
  --found;
  return found->second.end > pages.begin ? found : exports_.end();
}

AclIpc::Exports::iterator AclIpc::FindExport(const std::string& key) {
  auto found = exports_.begin();
  while (found != exports_.end() && found->second.key != key) ++found;
  return found;
}

Result<std::string> AclIpc::MakeKey(int32_t device_id, const Pages& pages) const {
  const ScopedContext scope(devices_.functions(), MC_TRY(devices_.ContextOf(device_id)));
  std::array<char, kIpcKeyBytes> key{};
  AclError rc = scope.error();
  if (rc == kSuccess) {
    rc = devices_.functions().IpcMemGetExportKey(reinterpret_cast<void*>(pages.begin), pages.end - pages.begin,
                                                 key.data(), key.size(), 0);
  }
  if (rc == kSuccess) return std::string(key.data(), strnlen(key.data(), key.size()));
  return std::unexpected(devices_.Failed(device_id, ErrorCode::INTERNAL_ERROR, rc,
                                         fmt::format("aclrtIpcMemGetExportKey of [{:#x}, +{}) on NPU device {}",
                                                     pages.begin, pages.end - pages.begin, device_id)));
}

Result<NpuIpc::Exported> AclIpc::Export(AscendUnifiedPointer at, size_t size) {
  const Pages pages = MC_TRY(PagesAround(at, size));
  const auto begin = static_cast<uintptr_t>(at.device_ptr);
  std::unique_lock lock(mutex_);
  for (auto known = Touching(pages); known != exports_.end(); known = Touching(pages)) {
    ExportEntry& entry = known->second;
    if (entry.busy) {
      changed_.wait(lock);
      continue;
    }
    if (entry.users == 0) {
      MC_TRY(EndExport(lock, known));
      continue;
    }
    if (known->first > pages.begin || entry.end < pages.end) {
      return Error(ErrorCode::INVALID_PARAMS,
                   "NPU memory [{:#x}, +{}) shares a page with memory exported as [{:#x}, +{}), and one page has one "
                   "key: share the whole block first, then parts of it have its key",
                   begin, size, known->first, entry.end - known->first);
    }
    ++entry.users;
    return Exported{entry.key, begin - known->first};
  }
  const auto made = exports_.emplace(pages.begin, ExportEntry{.end = pages.end, .device_id = at.device_id}).first;
  lock.unlock();
  auto key = MakeKey(at.device_id, pages);
  lock.lock();
  changed_.notify_all();
  if (!key) {
    exports_.erase(made);
    return std::unexpected(std::move(key.error()));
  }
  made->second = {.end = pages.end, .device_id = at.device_id, .key = *key, .users = 1, .busy = false};
  return Exported{*std::move(key), begin - pages.begin};
}

Result<void> AclIpc::Allow(const std::string& key, int32_t pid) {
  {
    std::lock_guard lock(mutex_);
    const auto found = FindExport(key);
    if (found == exports_.end() || found->second.busy || found->second.users == 0) {
      return Error(ErrorCode::INVALID_PARAMS, "NPU memory is not exported any more");
    }
    if (found->second.allowed.contains(pid)) return {};
    ++found->second.users;  // so that it is not ended under the call
  }
  const AclError rc = devices_.functions().IpcMemSetImportPid(key.c_str(), &pid, 1);
  Result<void> allowed;
  if (rc != kSuccess) {
    allowed = std::unexpected(MakeStatus(devices_.functions(), ErrorCode::INTERNAL_ERROR, rc,
                                         fmt::format("aclrtIpcMemSetImportPid of process {}", pid)));
  } else {
    std::lock_guard lock(mutex_);
    FindExport(key)->second.allowed.insert(pid);
  }
  MC_TRY(CloseExport(key));
  return allowed;
}

Result<void> AclIpc::Close(const std::string& key, int32_t device_id, const char* what) const {
  const ScopedContext scope(devices_.functions(), devices_.OpenContext(device_id));
  AclError rc = scope.error();
  if (rc == kSuccess) rc = Insist(devices_.functions().IpcMemClose, key.c_str());
  if (rc == kSuccess) return {};
  return std::unexpected(
      devices_.Failed(device_id, ErrorCode::INTERNAL_ERROR, rc, fmt::format("aclrtIpcMemClose of {}", what)));
}

Result<void> AclIpc::CloseExport(const std::string& key) {
  std::unique_lock lock(mutex_);
  const auto found = FindExport(key);
  MC_CHECK(found != exports_.end() && found->second.users > 0, "an export was closed once too often");
  if (--found->second.users > 0) return {};
  return EndExport(lock, found);
}

void AclIpc::AbandonExport(const std::string& key) {
  std::lock_guard lock(mutex_);
  const auto found = FindExport(key);
  MC_CHECK(found != exports_.end() && found->second.users > 0, "an export was closed once too often");
  --found->second.users;
}

Result<void> AclIpc::EndExport(std::unique_lock<std::mutex>& lock, Exports::iterator entry) {
  entry->second.busy = true;
  lock.unlock();
  auto closed = Close(entry->second.key, entry->second.device_id, "exported memory");
  lock.lock();
  entry->second.busy = false;
  if (closed) exports_.erase(entry);
  changed_.notify_all();
  return closed;
}

// --- imports ---

Result<AscendUnifiedPointer> AclIpc::ImportNow(const std::string& key, int32_t device_id) const {
  const FunctionTable& functions = devices_.functions();
  const ScopedContext scope(functions, MC_TRY(devices_.ContextOf(device_id)));
  void* memory = nullptr;
  AclError rc = scope.error();
  if (rc == kSuccess) rc = functions.IpcMemImportByKey(&memory, key.c_str(), kIpcImportEnablePeerAccess);
  if (rc != kSuccess) {
    return std::unexpected(devices_.Failed(device_id, ErrorCode::TRANSFER_FAIL, rc, "aclrtIpcMemImportByKey"));
  }
  // On which of this process's devices it is; that of the context if the runtime does not tell.
  PointerAttributes attributes{};
  const bool known =
      functions.PointerGetAttributes(memory, &attributes) == kSuccess && attributes.location.type == kLocationDevice;
  if (!known) DropErrorText(functions);
  return AscendUnifiedPointer{known ? static_cast<int32_t>(attributes.location.id) : device_id,
                              static_cast<DeviceAddress>(reinterpret_cast<uintptr_t>(memory))};
}

Result<AscendUnifiedPointer> AclIpc::Import(const std::string& key, int32_t device_id) {
  std::unique_lock lock(mutex_);
  for (auto known = imports_.find(key); known != imports_.end(); known = imports_.find(key)) {
    if (known->second.users > 0) {
      ++known->second.users;
      return known->second.at;
    }
    changed_.wait(lock);
  }
  const auto made = imports_.emplace(key, ImportEntry{.at = {}, .device_id = device_id}).first;
  lock.unlock();
  auto at = ImportNow(key, device_id);
  lock.lock();
  changed_.notify_all();
  if (!at) {
    imports_.erase(made);
    return at;
  }
  made->second.at = *at;
  made->second.users = 1;
  return at;
}

Result<void> AclIpc::CloseImport(const std::string& key) {
  std::unique_lock lock(mutex_);
  const auto found = imports_.find(key);
  MC_CHECK(found != imports_.end() && found->second.users > 0, "an import was closed once too often");
  if (--found->second.users > 0) return {};
  lock.unlock();
  auto closed = Close(key, found->second.device_id, "imported memory");
  lock.lock();
  imports_.erase(found);
  changed_.notify_all();
  return closed;
}

}  // namespace mooncake::acl
