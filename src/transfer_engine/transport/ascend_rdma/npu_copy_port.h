// CopyPort on an NpuDriver: one stream for each copy that may be under way.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "device/npu_driver.h"
#include "transfer_engine/transport/ascend_rdma/copy_port.h"

namespace mooncake::bridge {

// A runtime reports the error of a copy to whoever synchronizes its stream, and then for the whole stream. So each
// ticket has a stream to itself while it lives: its error is known exactly, and nothing else waits for it.
// Where host memory cannot be page-locked, copies are synchronous instead: Start does them, which is correct everywhere
// and overlaps with the wire alone. The runtime has no way out of a synchronous copy: a device that hangs in one (also
// in that of the less than kAsyncAlignment bytes before a read's first aligned one) holds up its lane until it is lost.
// One that hangs in an asynchronous copy does not, where streams can be aborted. The driver outlives it.
class NpuCopyPort final : public CopyPort {
 public:
  // `depth` streams per direction; none, and one copy at a time, if `page_locked` is false.
  static Result<std::unique_ptr<NpuCopyPort>> Open(NpuDriver& driver, int32_t device_id, size_t depth,
                                                   bool page_locked);

  size_t depth() const override { return depth_; }
  Ticket Start(Direction direction, std::span<const SlotCopy> copies) override;
  std::optional<Result<void>> Poll(Ticket ticket) override;
  void Abort(Ticket ticket) override;
  bool Lost() const override { return driver_.DeviceLost(device_id_); }

 private:
  struct Lane {
    std::unique_ptr<NpuStream> stream;  // null: it was ended and could not be replaced
    bool busy = false;
    bool submitted = false;
    bool aborted = false;
    int poll_errors = 0;
    Result<void> outcome;  // the first error so far
  };
  NpuCopyPort(NpuDriver& driver, int32_t device_id, size_t depth, bool page_locked)
      : driver_(driver), device_id_(device_id), depth_(depth), page_locked_(page_locked), lanes_(kDirections * depth) {}
  Result<void> CopyAll(Direction direction, std::span<const SlotCopy> copies);
  Result<void> Submit(Lane& lane, Direction direction, std::span<const SlotCopy> copies);
  Result<void> Over(Lane& lane);

  NpuDriver& driver_;
  const int32_t device_id_;
  const size_t depth_;
  const bool page_locked_;
  std::vector<Lane> lanes_;  // those of writes first
  std::vector<NpuCopy> parts_;
};

}  // namespace mooncake::bridge
