// Drawing of the progress line.
#include "replay/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace mooncake::replay {
namespace {

constexpr Duration kRedraw = std::chrono::milliseconds(100);
constexpr Duration kPlainLine = std::chrono::seconds(5);
constexpr size_t kBarWidth = 24;
constexpr const char* kWipe = "\r\033[K";

}  // namespace

std::string ProgressLine(const ReplayCounts& counts, uint64_t total_requests, double seconds, bool with_bar) {
  const double time = std::max(seconds, 1e-6);
  const double share =
      static_cast<double>(counts.requests) / static_cast<double>(std::max<uint64_t>(total_requests, 1));
  std::string line;
  if (with_bar) {
    const size_t full = std::min(kBarWidth, static_cast<size_t>(share * kBarWidth));
    line = fmt::format("[{}{}] ", std::string(full, '#'), std::string(kBarWidth - full, '-'));
  }
  line +=
      fmt::format("{}/{} requests  {:.0f} blocks/s  {:.0f} MB/s  hits {:.1f} %", counts.requests, total_requests,
                  static_cast<double>(counts.blocks) / time,
                  static_cast<double>(counts.bytes_read + counts.bytes_written) / 1e6 / time, 100 * counts.HitRatio());
  if (counts.verification_errors > 0) line += fmt::format("  {} WRONG", counts.verification_errors);
  if (share > 0) {
    const auto left = static_cast<uint64_t>(std::llround(time / share - time));
    line += fmt::format("  ETA {}:{:02}", left / 60, left % 60);
  }
  return line;
}

Progress::Progress(std::FILE* out, bool is_terminal, uint64_t total_requests)
    : out_(out),
      terminal_(is_terminal),
      total_requests_(total_requests),
      start_(SteadyClock::Instance().Now()),
      next_(start_ + (terminal_ ? kRedraw : kPlainLine)) {}

void Progress::Update(const ReplayCounts& counts) {
  const TimePoint now = SteadyClock::Instance().Now();
  if (now < next_) return;
  next_ = now + (terminal_ ? kRedraw : kPlainLine);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string line = ProgressLine(counts, total_requests_, seconds, terminal_);
  fmt::print(out_, "{}{}{}", terminal_ ? kWipe : "", line, terminal_ ? "" : "\n");
  std::fflush(out_);
}

void Progress::Interrupt(const std::string& line) {
  fmt::print(out_, "{}{}\n", terminal_ ? kWipe : "", line);
  std::fflush(out_);
}

void Progress::Finish() {
  if (!terminal_) return;
  fmt::print(out_, "{}", kWipe);
  std::fflush(out_);
}

}  // namespace mooncake::replay
