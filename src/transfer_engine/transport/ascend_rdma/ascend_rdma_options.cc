// Reads the bridge's environment variables.
#include <charconv>

#include "common/byte_size.h"
#include "common/env.h"
#include "transfer_engine/transport/ascend_rdma/ascend_rdma_transport.h"

namespace mooncake {
namespace {

Result<void> ReadBytes(const env::Variable& variable, size_t low, size_t high, size_t& bytes) {
  const std::optional<std::string> text = env::Get(variable);
  if (!text || text->empty()) return {};
  const auto parsed = ParseByteSize(*text);
  if (!parsed || *parsed < low || *parsed > high) {
    return Error(ErrorCode::INVALID_PARAMS, "{}='{}' is no size from {} to {}", variable.name, *text, FormatBytes(low),
                 FormatBytes(high));
  }
  bytes = *parsed;
  return {};
}

std::optional<int64_t> NumberIn(std::string_view text, int64_t low, int64_t high) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < low || number > high) return std::nullopt;
  return number;
}

Result<std::optional<int64_t>> ReadNumber(const env::Variable& variable, int64_t low, int64_t high) {
  const std::optional<std::string> text = env::Get(variable);
  if (!text || text->empty()) return std::nullopt;
  const auto number = NumberIn(*text, low, high);
  if (number) return number;
  return Error(ErrorCode::INVALID_PARAMS, "{}='{}' is no number from {} to {}", variable.name, *text, low, high);
}

Result<void> ReadDevices(std::vector<int32_t>& devices) {
  const std::string list = env::Get(env::kNpuBridgeDevices).value_or("");
  for (size_t at = 0; at < list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    const auto device = NumberIn(std::string_view(list).substr(at, comma - at), 0, INT32_MAX);
    if (!device) {
      return Error(ErrorCode::INVALID_PARAMS, "{}='{}': numbers of NPU devices with commas expected",
                   env::kNpuBridgeDevices.name, list);
    }
    devices.push_back(static_cast<int32_t>(*device));
    at = comma + 1;
  }
  return {};
}

}  // namespace

Result<AscendRdmaOptions> AscendRdmaOptions::FromEnvironment() {
  constexpr size_t kPage = 4096;
  AscendRdmaOptions options;
  bridge::SchedulerOptions& scheduler = options.lane.scheduler;
  MC_TRY(ReadBytes(env::kNpuBridgeSlot, kPage, size_t{1} << 30, options.slot_bytes));
  MC_TRY(ReadBytes(env::kNpuBridgeRing, options.slot_bytes, kRingBytesMax, options.ring_bytes));
  MC_TRY(ReadBytes(env::kNpuBridgeTargetRing, 0, kRingBytesMax, options.target_ring_bytes));
  MC_TRY(ReadBytes(env::kNpuBridgeChunk, kPage, options.slot_bytes, options.chunk_bytes));
  MC_TRY(ReadBytes(env::kNpuBridgeSmall, 0, options.slot_bytes, scheduler.small_bytes));
  if (const auto age = MC_TRY(ReadNumber(env::kNpuBridgeAge, 0, 1'000'000))) {
    scheduler.small_age = std::chrono::microseconds(*age);
  }
  if (const auto limit = MC_TRY(ReadNumber(env::kNpuBridgeRequests, 1, INT32_MAX))) {
    scheduler.operations_max = static_cast<size_t>(*limit);
    scheduler.operations_per_peer_max = std::max<size_t>(1, scheduler.operations_max / 4 * 3);
  }
  MC_TRY(ReadDevices(options.devices));
  return options;
}

}  // namespace mooncake
