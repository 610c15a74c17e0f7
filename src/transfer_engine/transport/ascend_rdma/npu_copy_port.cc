// Widens writes and splits reads so that asynchronous copies are aligned; ends streams that cannot be trusted.
#include "transfer_engine/transport/ascend_rdma/npu_copy_port.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace mooncake::bridge {

Result<std::unique_ptr<NpuCopyPort>> NpuCopyPort::Open(NpuDriver& driver, int32_t device_id, size_t depth,
                                                       bool page_locked) {
  MC_CHECK(depth > 0, "no stream");
  std::unique_ptr<NpuCopyPort> port(new NpuCopyPort(driver, device_id, page_locked ? depth : 1, page_locked));
  if (!page_locked) return port;
  for (Lane& lane : port->lanes_) lane.stream = MC_TRY(driver.CreateStream(device_id));
  return port;
}

Result<void> NpuCopyPort::CopyAll(Direction direction, std::span<const SlotCopy> copies) {
  for (const SlotCopy& copy : copies) {
    const CopyEnd host = CopyEnd::Host(copy.host);
    const CopyEnd device = CopyEnd::Device(copy.device);
    const bool write = direction == Direction::kWrite;
    MC_TRY(driver_.CopyNow({write ? host : device, write ? device : host, copy.bytes, copy.bytes}));
  }
  return {};
}

CopyPort::Ticket NpuCopyPort::Start(Direction direction, std::span<const SlotCopy> copies) {
  MC_CHECK(!copies.empty(), "nothing to copy");
  const size_t first = Index(direction) * depth_;
  size_t at = first;
  // A stream that is still there before one that has to be made.
  for (size_t i = first; i < first + depth_; ++i) {
    if (lanes_[i].busy) continue;
    if (lanes_[at].busy || lanes_[at].stream == nullptr) at = i;
  }
  MC_CHECK(!lanes_[at].busy, "more than {} copies at once", depth_);
  Lane& lane = lanes_[at];
  lane.busy = true;
  lane.outcome = page_locked_ ? Submit(lane, direction, copies) : CopyAll(direction, copies);
  return at;
}

Result<void> NpuCopyPort::Submit(Lane& lane, Direction direction, std::span<const SlotCopy> copies) {
  if (lane.stream == nullptr) lane.stream = MC_TRY(driver_.CreateStream(device_id_));
  parts_.clear();
  for (const SlotCopy& copy : copies) {
    const CopyEnd host = CopyEnd::Host(copy.host);
    const CopyEnd device = CopyEnd::Device(copy.device);
    const size_t phase = device.address() % kAsyncAlignment;
    MC_CHECK(phase == host.address() % kAsyncAlignment, "{:#x} and {:#x} differ in phase", device.address(),
             host.address());
    if (direction == Direction::kWrite) {
      // The unit of kAsyncAlignment around a byte of an allocation belongs to the allocation.
      const auto down = [&](uintptr_t address) { return address - phase; };
      const AscendUnifiedPointer from{copy.device.device_id, static_cast<DeviceAddress>(down(device.address()))};
      parts_.push_back(
          {CopyEnd::Host(copy.host - phase), CopyEnd::Device(from), copy.bytes + phase, copy.bytes + phase});
      continue;
    }
    // What precedes the first aligned byte is less than a unit; neighbours of the user's memory may not be written.
    const size_t head = phase == 0 ? 0 : std::min(copy.bytes, kAsyncAlignment - phase);
    if (head > 0) MC_TRY(driver_.CopyNow({device, host, head, copy.bytes}));
    if (copy.bytes > head) parts_.push_back({device + head, host + head, copy.bytes - head, copy.bytes - head});
  }
  if (parts_.empty()) return {};
  lane.submitted = true;
  return lane.stream->Submit(parts_);
}

std::optional<Result<void>> NpuCopyPort::Poll(Ticket ticket) {
  Lane& lane = lanes_[ticket];
  MC_CHECK(lane.busy, "ticket {} is over", ticket);
  if (!lane.submitted) return Over(lane);
  const auto waited = lane.stream->Poll();
  if (waited && *waited == Waited::kTimedOut) return std::nullopt;
  if (waited) {
    if (lane.aborted || lane.poll_errors > 0) lane.stream.reset();
    return Over(lane);
  }
  if (lane.outcome) lane.outcome = std::unexpected(waited.error());
  // It may be the call's own error. After a second one the stream is ended, which waits for what is queued in it: that
  // had better not be a copy that hangs.
  if (++lane.poll_errors < 2 && !Lost()) return std::nullopt;
  if (!Lost()) (void)lane.stream->Abort();
  lane.stream.reset();
  return Over(lane);
}

Result<void> NpuCopyPort::Over(Lane& lane) {
  lane.busy = lane.submitted = lane.aborted = false;
  lane.poll_errors = 0;
  return std::exchange(lane.outcome, {});
}

void NpuCopyPort::Abort(Ticket ticket) {
  Lane& lane = lanes_[ticket];
  MC_CHECK(lane.busy, "ticket {} is over", ticket);
  if (!lane.submitted) return;
  const auto aborted = lane.stream->Abort();
  if (aborted) {
    lane.aborted = true;
    if (lane.outcome) lane.outcome = Error(ErrorCode::DATA_COPY_FAILED, "the copy was aborted");
  } else {
    log::Warn("NPU device {}: {}; its memory is held until it ends", device_id_, aborted.error().ToString());
  }
}

}  // namespace mooncake::bridge
