// Writes the trace.
#include "core/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "core/config.h"

namespace aclemu {
namespace {

int TraceFile() {
  static const int fd = [] {
    const std::string& path = Settings().trace;
    int opened = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (opened < 0) Log("cannot write the trace %s", path.c_str());
    return opened;
  }();
  return fd;
}

int64_t Since(Clock::time_point time) {
  static const Clock::time_point first = time;
  return std::chrono::duration_cast<std::chrono::microseconds>(time - first).count();
}

struct Line {
  char text[400];
  size_t size = 0;
  template <typename... Args>
  void Add(const char* format, Args... args) {
    int n = snprintf(text + size, sizeof(text) - size, format, args...);
    if (n > 0) size = std::min(size + static_cast<size_t>(n), sizeof(text) - 1);
  }
};

}  // namespace

bool Tracing() {
  return !Settings().trace.empty();
}

Clock::time_point TraceBegin() {
  if (!Tracing()) return {};
  Clock::time_point now = Clock::now();
  Since(now);
  return now;
}

void Trace(Api api, const CallArgs& args, Clock::time_point begin, aclError code) {
  if (!Tracing() || TraceFile() < 0) return;
  auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
  Line line;
  line.Add("%lld +%lld t%u %s", static_cast<long long>(Since(begin)), static_cast<long long>(took), ThreadNumber(),
           Name(api));
  if (args.device >= 0) line.Add(" device=%d", args.device);
  if (args.a != nullptr) line.Add(" %p", args.a);
  if (args.b != nullptr) line.Add(" %p", args.b);
  if (args.bytes != 0) line.Add(" bytes=%llu", static_cast<unsigned long long>(args.bytes));
  if (args.has_stream) line.Add(" stream=%p", args.stream);
  line.Add(" = %d\n", code);
  // One write each, so that lines of several threads do not mix.
  if (write(TraceFile(), line.text, line.size) == static_cast<ssize_t>(line.size)) return;
  static std::atomic<bool> told;
  if (!told.exchange(true)) Log("the trace %s is incomplete", Settings().trace.c_str());
}

}  // namespace aclemu
