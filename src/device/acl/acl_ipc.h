// NpuIpc on ACL's IPC memory (CANN 8.5 and later).
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "device/acl/acl_devices.h"
#include "device/npu_ipc.h"

namespace mooncake::acl {

// Any thread. The runtime exports a page once and imports a key once per process, so both are counted here. Whoever
// meets an entry that another thread is making or ending waits for that call.
class AclIpc final : public NpuIpc {
 public:
  explicit AclIpc(Devices& devices) : devices_(devices) {}

  // NOT_IMPLEMENTED naming all that the runtime lacks.
  Result<void> Available() const;

  Result<int32_t> OwnPid() override;
  Result<Exported> Export(AscendUnifiedPointer at, size_t size) override;
  Result<void> Allow(const std::string& key, int32_t pid) override;
  Result<void> CloseExport(const std::string& key) override;
  void AbandonExport(const std::string& key) override;
  Result<AscendUnifiedPointer> Import(const std::string& key, int32_t device_id) override;
  Result<void> CloseImport(const std::string& key) override;

 private:
  // Whole pages.
  struct Pages {
    uintptr_t begin;
    uintptr_t end;
  };
  struct ExportEntry {
    uintptr_t end = 0;
    int32_t device_id = 0;
    std::string key;
    size_t users = 0;  // 0: abandoned, or the runtime refused to end it
    bool busy = true;  // a call is making or ending it
    std::set<int32_t> allowed;
  };
  struct ImportEntry {
    AscendUnifiedPointer at;
    int32_t device_id = 0;  // whose context imported it
    size_t users = 0;       // 0: a call is making or ending it
  };
  using Exports = std::map<uintptr_t, ExportEntry>;

  Result<Pages> PagesAround(AscendUnifiedPointer at, size_t size) const;
  Exports::iterator Touching(const Pages& pages);
  Exports::iterator FindExport(const std::string& key);
  Result<std::string> MakeKey(int32_t device_id, const Pages& pages) const;
  Result<AscendUnifiedPointer> ImportNow(const std::string& key, int32_t device_id) const;
  // With the lock, which is given back for a moment. The entry stays on an error.
  Result<void> EndExport(std::unique_lock<std::mutex>& lock, Exports::iterator entry);
  Result<void> Close(const std::string& key, int32_t device_id, const char* what) const;

  Devices& devices_;
  std::mutex mutex_;  // not held across calls of the runtime
  std::condition_variable changed_;
  Exports exports_;  // by first address
  std::map<std::string, ImportEntry> imports_;
};

}  // namespace mooncake::acl
