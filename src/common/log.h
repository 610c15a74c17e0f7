// Process log on stderr. The edge logs once (RPC handler, binding, background loop, main); leaves return Status
// instead.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace mooncake::log {

enum class Level { kDebug, kInfo, kWarn, kError, kOff };

// Lowest level that is printed. Default: MC_LOG_LEVEL (debug|info|warn|error|off), else info. Any thread.
void SetLevel(Level level);
bool Enabled(Level level);
void Write(Level level, std::string_view message);

// error: an operator must act. warn: carried on, degraded. info: life cycle, about ten lines a process.
template <typename... Args>
void Error(fmt::format_string<Args...> format, Args&&... args) {
  if (Enabled(Level::kError)) Write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void Warn(fmt::format_string<Args...> format, Args&&... args) {
  if (Enabled(Level::kWarn)) Write(Level::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void Info(fmt::format_string<Args...> format, Args&&... args) {
  if (Enabled(Level::kInfo)) Write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void Debug(fmt::format_string<Args...> format, Args&&... args) {
  if (Enabled(Level::kDebug)) Write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace mooncake::log
