// Virtual memory of devices: reserved addresses, physical memory, and which lies where. Thread safe.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/runtime.h"
#include "core/shares.h"

namespace aclemu {

// Physical memory: goes back to the device when the last mapping and the handle are gone, in this process and in those
// that imported it.
struct Physical {
  Physical(DevicePool& of, int on_device) : pool(of), device(on_device) {}
  ~Physical();
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  DevicePool& pool;
  const int device;
  uint64_t handle = 0;
  uint64_t bytes = 0;
  bool huge = true;
  std::vector<Extent> extents;
  std::shared_ptr<Import> import;    // when it is another process's
  std::optional<ShareKey> exported;  // guarded by the lock of VirtualMemory; and references too
  uint64_t references = 1;           // of the handle
};

class VirtualMemory {
 public:
  static VirtualMemory& Get();

  aclError Reserve(int device, uint64_t bytes, uint64_t alignment, uintptr_t wish, uintptr_t* out);
  aclError Release(uintptr_t base);
  bool IsReserved(uintptr_t addr);

  // Takes a reference-counted handle for it.
  uint64_t Add(std::shared_ptr<Physical> memory);
  std::shared_ptr<Physical> Find(uint64_t handle);
  aclError Free(uint64_t handle);
  aclError Retain(uintptr_t addr, uint64_t* handle);

  aclError Map(uintptr_t addr, uint64_t bytes, uint64_t handle);
  aclError Unmap(uintptr_t addr);
  uint32_t TasksAt(uintptr_t addr);  // queued tasks that use the mapping which begins there
  // Lets another device use what is mapped in the range, or not.
  aclError SetAccess(uintptr_t addr, uint64_t bytes, int device, bool allowed);
  aclError GetAccess(uintptr_t addr, int device, bool* allowed);

  aclError Export(uint64_t handle, bool open_to_all, ShareKey* key);

  // Ends everything on a device. Before its blocks go.
  void DropDevice(int device);
  void AddLeaks(int device, std::vector<Leak>* leaks);

 private:
  struct Piece {
    std::shared_ptr<Physical> memory;
    uint64_t reach = 0;  // bit d: device d may use it
  };
  struct Reservation {
    int device;
    uint64_t bytes;
    std::map<uintptr_t, Piece> pieces;
    std::vector<std::weak_ptr<Range>> runs;  // also earlier ones, which queued tasks may use
  };
  using Pieces = std::map<uintptr_t, Piece>;

  // These need the lock.
  std::map<uintptr_t, Reservation>::iterator Around(uintptr_t addr);
  static Pieces::iterator PieceAround(Reservation& reservation, uintptr_t addr);
  // Makes the ranges that copies see anew: what is mapped side by side on one device is one range.
  static void Rebuild(Reservation& reservation);
  static uint32_t TasksOn(const Reservation& reservation, uintptr_t begin, uint64_t bytes);

  std::mutex mu_;
  std::map<uintptr_t, Reservation> reservations_;
  std::map<uint64_t, std::shared_ptr<Physical>> handles_;
};

}  // namespace aclemu
