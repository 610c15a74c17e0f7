// Reads the RDMA transport's environment variables.
#include "transfer_engine/transport/rdma/rdma_options.h"

#include <bit>
#include <charconv>

#include "common/env.h"

namespace mooncake::rdma {
namespace {

template <typename T>
Result<void> Read(const env::Variable& variable, int64_t low, int64_t high, T& value) {
  const std::optional<std::string> text = env::Get(variable);
  if (!text || text->empty()) return {};
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size() || number < low || number > high) {
    return Error(ErrorCode::INVALID_PARAMS, "{}='{}' is no number from {} to {}", variable.name, *text, low, high);
  }
  value = static_cast<T>(number);
  return {};
}

}  // namespace

Result<RdmaOptions> RdmaOptions::FromEnvironment() {
  RdmaOptions options;
  MC_TRY(Read(env::kIbPort, 1, 255, options.port));
  MC_TRY(Read(env::kNcclGidIndex, -1, 255, options.gid_index));
  MC_TRY(Read(env::kIbGidIndex, -1, 255, options.gid_index));
  MC_TRY(Read(env::kGidIndex, -1, 255, options.gid_index));
  MC_TRY(Read(env::kRdmaMtu, 256, 4096, options.mtu_bytes));
  if (!std::has_single_bit(options.mtu_bytes)) {
    return Error(ErrorCode::INVALID_PARAMS, "{}={} is none of 256, 512, 1024, 2048 and 4096", env::kRdmaMtu.name,
                 options.mtu_bytes);
  }
  MC_TRY(Read(env::kRdmaQueues, 1, 16, options.queues_per_rail));
  MC_TRY(Read(env::kRdmaQueueDepth, 2, 16384, options.queue_depth));
  MC_TRY(Read(env::kRdmaSliceSize, 4096, 64 << 20, options.slice_bytes));
  MC_TRY(Read(env::kRdmaMaxMrSize, 4096, INT64_MAX, options.max_mr_bytes));
  int relaxed = 1;
  MC_TRY(Read(env::kRdmaRelaxedOrdering, 0, 2, relaxed));
  options.relaxed_ordering = relaxed != 0;
  int traffic_class = -1;  // -1 is how "unset" is spelt by those who set all variables
  MC_TRY(Read(env::kIbTrafficClass, -1, 255, traffic_class));
  options.traffic_class = static_cast<uint8_t>(traffic_class < 0 ? 0 : traffic_class);
  int service_level = -1;
  MC_TRY(Read(env::kIbServiceLevel, -1, 15, service_level));
  options.service_level = static_cast<uint8_t>(service_level < 0 ? 0 : service_level);
  MC_TRY(Read(env::kPkeyIndex, 0, 65535, options.pkey_index));
  MC_TRY(Read(env::kRdmaRetries, 0, 128, options.max_attempts));
  int64_t no_progress_s = -1;
  MC_TRY(Read(env::kSliceTimeout, -1, 3600, no_progress_s));
  if (no_progress_s > 0) options.no_progress = std::chrono::seconds(no_progress_s);
  return options;
}

}  // namespace mooncake::rdma
