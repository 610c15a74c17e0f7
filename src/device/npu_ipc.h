// Device memory that processes of one host share by key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/status.h"
#include "device/memory_type.h"

namespace mooncake {

// Any thread. Errors carry the runtime's number as vendor_code.
class NpuIpc {
 public:
  // Whole pages of one block, under one key. Counted: who exports a part of what is exported already shares its key.
  struct Exported {
    std::string key;      // printable
    uint64_t offset = 0;  // of the memory asked for, from the beginning of what the key stands for
  };

  virtual ~NpuIpc() = default;

  // The number by which the driver knows this process: what an exporter allows.
  virtual Result<int32_t> OwnPid() = 0;

  // Nobody can import it yet. The memory must not be freed before CloseExport. INVALID_PARAMS when some of its pages,
  // but not all, are exported under another key.
  virtual Result<Exported> Export(AscendUnifiedPointer at, size_t size) = 0;
  // From here on, until the export ends, that process may import it. Idempotent.
  virtual Result<void> Allow(const std::string& key, int32_t pid) = 0;
  // All importers have closed it, or are gone.
  virtual Result<void> CloseExport(const std::string& key) = 0;
  // Instead of CloseExport, where an importer may have it still: the next export that touches those pages tries to end
  // it, and fails if that does not work. Until then the memory had better not be freed.
  virtual void AbandonExport(const std::string& key) = 0;

  // Another process's memory, for copies with memory of `device_id`. Counted by key. The exporter may end at any time:
  // copies then fail.
  virtual Result<AscendUnifiedPointer> Import(const std::string& key, int32_t device_id) = 0;
  // No copy uses it any more.
  virtual Result<void> CloseImport(const std::string& key) = 0;
};

}  // namespace mooncake
