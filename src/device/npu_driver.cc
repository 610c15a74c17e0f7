// Descriptions of copies, and the one way to end the use of a stream.
#include "device/npu_driver.h"

#include <chrono>

#include "common/log.h"

namespace mooncake {
namespace {

std::string Place(const CopyEnd& end) {
  return end.on_host() ? std::string("host") : fmt::format("NPU device {}", end.device_id());
}

}  // namespace

std::string_view Name(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kHostToDevice:
      return "host to device";
    case CopyDirection::kDeviceToHost:
      return "device to host";
    case CopyDirection::kDeviceToDevice:
      return "device to device";
  }
  return "unknown";
}

std::string Describe(const NpuCopy& copy) {
  return fmt::format("copying {} B from {} to {}", copy.size, Place(copy.source), Place(copy.target));
}

std::string Describe(std::span<const NpuCopy> copies) {
  if (copies.size() == 1) return Describe(copies.front());
  size_t bytes = 0;
  for (const NpuCopy& copy : copies) bytes += copy.size;
  if (copies.empty()) return "copying nothing";
  return fmt::format("{} copies, {} B in all, from {} to {}", copies.size(), bytes, Place(copies.front().source),
                     Place(copies.front().target));
}

Status TimeOut(Duration after) {
  return Status(ErrorCode::DATA_COPY_FAILED,
                fmt::format("timed out after {} s", std::chrono::duration<double>(after).count()));
}

Result<void> Drain(NpuStream& stream, Duration patience, bool overdue, std::string_view what, bool& reusable) {
  constexpr Duration kOneMoreLook = std::chrono::milliseconds(1);
  Result<void> outcome;
  bool asked_to_abort = false;
  bool aborted = false;
  // An error of Synchronize may be the call's own: two in a row leave the rest to the stream's end, which waits as
  // well.
  for (int errors = 0; errors < 2;) {
    const auto waited = stream.Synchronize(overdue ? kOneMoreLook : patience);
    if (waited && *waited == Waited::kDone) {
      reusable = reusable && errors == 0 && !aborted;
      return outcome;
    }
    if (!waited) {
      ++errors;
      if (outcome) outcome = std::unexpected(waited.error());
      continue;
    }
    overdue = false;
    if (outcome) outcome = std::unexpected(TimeOut(patience));
    if (!asked_to_abort) {
      asked_to_abort = true;
      const auto abort = stream.Abort();
      aborted = abort.has_value();
      log::Warn("{}: {}; {}", what, TimeOut(patience).message(),
                aborted ? "aborted" : abort.error().ToString() + "; its memory is held until it ends");
    } else {
      log::Warn("{}: still not ended after another {} s{}", what, std::chrono::duration<double>(patience).count(),
                aborted ? ", though aborted" : "");
    }
  }
  reusable = false;
  return outcome;
}

}  // namespace mooncake
