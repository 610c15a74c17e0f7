// This process's memory as its RDMA devices know it.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "transfer_engine/region_registry.h"
#include "transfer_engine/transport/rdma/rdma_device.h"

namespace mooncake::rdma {

// Registrations of one region: a piece is registered once with every device.
struct RegisteredMemory {
  uint64_t address = 0;
  uint64_t length = 0;
  uint64_t piece_bytes = 0;                  // 0: one piece
  std::vector<std::vector<ibv_mr*>> pieces;  // [piece][device]

  uint32_t LocalKey(uint64_t at, size_t device) const {
    return pieces[piece_bytes == 0 ? 0 : (at - address) / piece_bytes][device]->lkey;
  }
};

// Any thread. Outlived by the devices.
class MemoryTable {
 private:
  struct Entry {
    RegisteredMemory memory;
    size_t users = 0;  // under the table's lock
  };

 public:
  // A use by an own transfer: the registration stays while one lives. Move-only.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept : table_(std::exchange(other.table_, nullptr)), entry_(std::move(other.entry_)) {}
    Pin& operator=(Pin&& other) noexcept {
      std::swap(table_, other.table_);
      std::swap(entry_, other.entry_);
      return *this;
    }
    ~Pin() { Release(); }
    void Release();
    explicit operator bool() const { return table_ != nullptr; }
    const RegisteredMemory& operator*() const { return entry_->memory; }
    const RegisteredMemory* operator->() const { return &entry_->memory; }

   private:
    friend class MemoryTable;
    MemoryTable* table_ = nullptr;
    std::shared_ptr<Entry> entry_;
  };

  MemoryTable(std::vector<RdmaDevice*> devices, const RdmaOptions& options);
  ~MemoryTable();  // no pin may be left

  // With every device, on several threads; blocks. `remote`: peers may read and write it. Errors undo everything and
  // name the device, the size and, where that is the reason, the limit of locked memory.
  Result<const RegisteredMemory*> Register(uint64_t address, uint64_t length, bool remote);
  // It is not pinned any more from here on. Null when it was not registered; else what Finish wants.
  const RegisteredMemory* Hide(uint64_t address);
  // Waits until its pins are gone; false when the deadline passes first.
  bool WaitUnpinned(const RegisteredMemory* memory, Deadline deadline);
  // No device accesses it after return, for this process or a peer. Not pinned.
  void Deregister(const RegisteredMemory* memory);

  // The registered memory that covers all of the range; an empty pin when none does.
  Pin Find(uint64_t address, uint64_t length);
  bool Covers(uint64_t address, uint64_t length) const;
  // Of regions longer than it; whole pages.
  uint64_t piece_bytes() const { return piece_bytes_; }

 private:
  const std::shared_ptr<Entry>* Covering(uint64_t address, uint64_t length) const;
  Result<void> RegisterPieces(RegisteredMemory& memory, int access);
  Result<ibv_mr*> RegisterPiece(RdmaDevice& device, uint64_t address, uint64_t length, int access) const;
  void DeregisterPieces(RegisteredMemory& memory);

  const std::vector<RdmaDevice*> devices_;
  const bool relaxed_ordering_;
  uint64_t piece_bytes_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable unpinned_;
  std::map<uint64_t, std::shared_ptr<Entry>> by_address_;
  std::map<const RegisteredMemory*, std::shared_ptr<Entry>> hidden_;
};

// Backs the range with pages, on several threads when it is large, so that registering it need not do it page by page.
void TouchPages(uint64_t address, uint64_t length);

}  // namespace mooncake::rdma
