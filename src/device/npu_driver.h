// Asynchronous primitives of an NPU, without any vendor's names: streams, page-locked memory, reachability. Copy
// engines and transports are written on these; device/acl implements them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/clock.h"
#include "common/status.h"
#include "device/memory_type.h"

namespace mooncake {

enum class CopyDirection : uint8_t { kHostToDevice, kDeviceToHost, kDeviceToDevice };
std::string_view Name(CopyDirection direction);

// One end of a copy: host memory, or memory of a device. Borrowed.
class CopyEnd {
 public:
  static CopyEnd Host(const std::byte* at) { return {-1, reinterpret_cast<uintptr_t>(at)}; }
  static CopyEnd Device(AscendUnifiedPointer at) { return {at.device_id, static_cast<uintptr_t>(at.device_ptr)}; }
  // Memory of a device that another process has handed out: runtimes copy it asynchronously and between devices only,
  // at any alignment.
  static CopyEnd Imported(AscendUnifiedPointer at) {
    return {at.device_id, static_cast<uintptr_t>(at.device_ptr), true};
  }

  bool on_host() const { return device_id_ < 0; }
  int32_t device_id() const { return device_id_; }  // -1: host
  bool imported() const { return imported_; }
  // For arithmetic and for the driver; only host() may be read or written by the CPU.
  uintptr_t address() const { return address_; }
  std::byte* host() const {
    MC_CHECK(on_host(), "memory of NPU device {} taken for host memory", device_id_);
    return reinterpret_cast<std::byte*>(address_);
  }
  CopyEnd operator+(size_t bytes) const { return {device_id_, address_ + bytes, imported_}; }

 private:
  CopyEnd(int32_t device_id, uintptr_t address, bool imported = false)
      : device_id_(device_id), address_(address), imported_(imported) {}
  int32_t device_id_;
  uintptr_t address_;
  bool imported_;
};

// `size` bytes, more than 0, between ranges that do not overlap; at least one end is on a device. The target really
// holds `capacity` bytes from there on.
struct NpuCopy {
  CopyEnd target;
  CopyEnd source;
  size_t size;
  size_t capacity;

  CopyDirection direction() const {
    if (source.on_host()) return CopyDirection::kHostToDevice;
    return target.on_host() ? CopyDirection::kDeviceToHost : CopyDirection::kDeviceToDevice;
  }
  const CopyEnd& host_end() const { return source.on_host() ? source : target; }
  // Whether one end is of another process.
  bool imported() const { return source.imported() || target.imported(); }
  // The device whose stream does it: the target's between devices, but never that of imported memory.
  int32_t device_id() const { return target.on_host() || target.imported() ? source.device_id() : target.device_id(); }
  // Bytes [offset, offset + bytes) of it.
  NpuCopy Part(size_t offset, size_t bytes) const {
    MC_CHECK(offset <= size && bytes <= size - offset, "[{}, +{}) of {} B", offset, bytes, size);
    return {target + offset, source + offset, bytes, capacity - offset};
  }
};

// "copying 4096 B from host to NPU device 0 (at 0x...)".
std::string Describe(const NpuCopy& copy);
std::string Describe(std::span<const NpuCopy> copies);

// Both ends of an asynchronous copy begin at a multiple of this.
inline constexpr size_t kAsyncAlignment = 64;

enum class Waited : uint8_t { kDone, kTimedOut };

// A queue of copies of one device, done in order. One user at a time, from any thread; the thread finds its own context
// as it was. Dying waits for what is queued, without a limit: drain or abort before.
class NpuStream {
 public:
  using Mark = uint64_t;

  virtual ~NpuStream() = default;

  // Queues copies of one direction; among themselves they are unordered. Host ends are page-locked and no copy spans
  // two registrations, all ends are aligned to kAsyncAlignment unless one is imported. Memory must stay untouched until
  // the stream is known to be done with it. After an error some of them may be queued.
  virtual Result<void> Submit(std::span<const NpuCopy> copies) = 0;
  // A place behind everything submitted so far. Each mark must be awaited, or the stream synchronized, some time.
  virtual Result<Mark> MarkHere() = 0;
  // Done: nothing submitted before the mark touches memory any more. It does not say that the copies succeeded: that is
  // what Synchronize reports. An error says nothing about either.
  virtual Result<Waited> AwaitMark(Mark mark, Duration timeout) = 0;
  // Done: everything has ended, and no copy failed since the last report. An error may be that of a copy (then reported
  // once) or of the call, so only a following success proves that the stream is idle. Timed out: work goes on.
  virtual Result<Waited> Synchronize(Duration timeout) = 0;
  // Synchronize that does not wait, as far as the runtime can tell without.
  virtual Result<Waited> Poll() { return Synchronize({}); }
  // Drops what has not run. NOT_IMPLEMENTED where the runtime cannot. Synchronize afterwards, then end the stream: what
  // an aborted one reports later is not defined.
  virtual Result<void> Abort() = 0;
};

// Host memory the NPU can read and write by itself; freed with the object, when no copy uses it. Network cards cannot
// register it.
class PinnedMemory {
 public:
  virtual ~PinnedMemory() = default;
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 protected:
  explicit PinnedMemory(std::span<std::byte> bytes) : bytes_(bytes) {}

 private:
  const std::span<std::byte> bytes_;
};

// Any thread. Outlives its streams and pinned memory. Errors carry the runtime's number as vendor_code; once one of
// them says that a device is gone, every call that would use that device fails at once.
class NpuDriver {
 public:
  virtual ~NpuDriver() = default;

  virtual Result<std::unique_ptr<NpuStream>> CreateStream(int32_t device_id) = 0;
  virtual Result<std::unique_ptr<PinnedMemory>> AllocatePinned(int32_t device_id, size_t bytes) = 0;
  // How many of the `size` bytes from `at` on are in one page-locked registration that this driver made; 0 when `at`
  // is in none.
  virtual size_t PinnedRun(const std::byte* at, size_t size) const = 0;
  // Whether the application seems to have page-locked both ends of the range by itself. Costs two runtime calls.
  virtual bool LooksPinned(int32_t device_id, const std::byte* at, size_t size) const = 0;
  // Synchronous copy: any host memory, any alignment, any size.
  virtual Result<void> CopyNow(const NpuCopy& copy) = 0;
  // Whether a copy can go from one device to the other directly. Asked and enabled once per pair, in both directions;
  // a runtime that fails to answer means no.
  virtual bool EnsurePeerAccess(int32_t from, int32_t to) = 0;
  virtual bool DeviceLost(int32_t device_id) const = 0;
};

// What AwaitMark and Synchronize timed out for: an error without a vendor's number, as no runtime has reported one.
Status TimeOut(Duration after);
inline bool IsTimeOut(const Result<void>& outcome) {
  return !outcome && outcome.error().vendor_code() == 0;
}

// Waits until nothing queued in the stream can touch memory any more, whatever that takes. Past `patience` without an
// end it aborts (`overdue`: that time has passed already); where the runtime cannot, it keeps waiting and logs each
// `patience`. Returns the first error of the copies; `reusable` becomes false when the stream must be ended instead of
// being used again (which waits again, so memory is let go of only after that).
Result<void> Drain(NpuStream& stream, Duration patience, bool overdue, std::string_view what, bool& reusable);

}  // namespace mooncake
