// Repeated measurements, their medians, and the report.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"

namespace mooncake::bench {

// Wall time of work() in seconds.
template <typename Work>
double Seconds(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  std::forward<Work>(work)();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Seconds of work, which returns a Result<void>.
template <typename Work>
Result<double> Timed(Work&& work) {
  Result<void> result;
  const double seconds = Seconds([&] { result = work(); });
  MC_TRY(std::move(result));
  return seconds;
}

// The p-th part (0..1) of the samples, which may be in any order; at least one.
double Quantile(std::vector<double> samples, double p);

struct Figure {
  std::string name;
  std::vector<double> runs;  // one value a run; pairs of a ratio are measured in the same run
  std::string unit;          // "GB/s", "us", "kops", "ratio"
  std::string against;       // what a ratio compares with; else empty
};

// Figures in the order of their first run.
class Figures {
 public:
  void Record(const std::string& name, double value, const char* unit, const char* against = "");
  std::vector<Figure> Take() { return std::move(figures_); }

 private:
  std::vector<Figure> figures_;
};

struct Host {
  std::string cpu;
  int cores = 0;
  uint64_t llc_bytes = 0;
  std::string kernel;
  std::string tcp_congestion;
  std::string iperf3;  // "used", or why not
};
// What can be known without measuring; iperf3 is left empty.
Host DescribeHost();

// The format every subcommand shares: version, host, and per figure the median with min, max and the number of runs.
std::string ReportJson(const Host& host, const std::vector<Figure>& figures);
std::string ReportTable(const Host& host, const std::vector<Figure>& figures);

}  // namespace mooncake::bench
