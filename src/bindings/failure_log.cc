// Rate-limited reports of failed data calls.
#include "bindings/failure_log.h"

#include <atomic>
#include <chrono>

#include "common/json_text.h"
#include "common/log.h"

namespace mooncake::python {
namespace {

constexpr std::chrono::nanoseconds kInterval = std::chrono::seconds(1);
std::atomic<int64_t> next_report_ns{0};  // on the steady clock
std::atomic<uint64_t> left_out{0};

bool IsOrdinary(ErrorCode code) {
  return code == ErrorCode::OBJECT_NOT_FOUND || code == ErrorCode::SHUTTING_DOWN;
}

}  // namespace

void ReportFailure(const char* call, std::string_view key, const Status& status) {
  if (IsOrdinary(status.code())) return;
  const bool full = status.code() == ErrorCode::NO_AVAILABLE_HANDLE;  // a result as well, but one with numbers
  const auto level = full ? log::Level::kDebug : log::Level::kWarn;
  if (!log::Enabled(level)) return;
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  int64_t due = next_report_ns.load();
  if (now < due || !next_report_ns.compare_exchange_strong(due, now + kInterval.count())) {
    left_out.fetch_add(1);
    return;
  }
  const uint64_t others = left_out.exchange(0);
  log::Write(level, fmt::format("{}({}): {}{}", call, QuoteForMessage(key), status.ToString(),
                                others == 0 ? "" : fmt::format(" (and {} failures before that)", others)));
}

}  // namespace mooncake::python
