// The process log, on spdlog's stderr sink, and the last words of a failed check.
#include "common/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "common/check.h"
#include "common/env.h"

namespace mooncake {
namespace log {
namespace {

spdlog::level::level_enum ToSpdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

spdlog::level::level_enum LevelOf(const std::string& name) {
  if (name == "debug") return spdlog::level::debug;
  if (name == "warn") return spdlog::level::warn;
  if (name == "error") return spdlog::level::err;
  if (name == "off") return spdlog::level::off;
  return spdlog::level::info;
}

// Never destroyed: threads may still log while statics are torn down.
spdlog::logger& Logger() {
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger("mooncake", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %L %P.%t] %v");
    const std::string name = env::Get(env::kLogLevel).value_or("info");
    const auto level = LevelOf(name);
    made->set_level(level);
    made->flush_on(spdlog::level::info);
    if (level == spdlog::level::info && name != "info") {
      made->warn("{}='{}' is not a level; info is used. Allowed: {}", env::kLogLevel.name, name,
                 env::kLogLevel.meaning);
    }
    return made;
  }();
  return *logger;
}

}  // namespace

void SetLevel(Level level) {
  Logger().set_level(ToSpdlog(level));
}
bool Enabled(Level level) {
  return Logger().should_log(ToSpdlog(level));
}
void Write(Level level, std::string_view message) {
  Logger().log(ToSpdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace log

namespace internal {
void CheckFailed(const char* file, int line, const char* condition, const std::string& values) {
  fmt::print(stderr, "{}:{}: check failed: {}{}{}\n", file, line, condition, values.empty() ? "" : ": ", values);
  std::fflush(stderr);
  std::abort();
}
}  // namespace internal
}  // namespace mooncake
