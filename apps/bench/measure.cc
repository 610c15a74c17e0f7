// Statistics and formatting of figures.
#include "bench/measure.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/byte_size.h"
#include "common/check.h"

namespace mooncake::bench {
namespace {

std::string FirstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(": ") + 2));
  }
  return "unknown";
}

// What one core sees, as the kernel tells it; sysconf adds up the caches of a whole socket on some machines.
uint64_t LastLevelCacheBytes() {
  constexpr uint64_t kAssumed = 32 << 20;
  uint64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    const std::string size = FirstLine(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index).c_str());
    if (const auto bytes = ParseByteSize(size)) largest = std::max(largest, *bytes);
  }
  return largest > 0 ? largest : kAssumed;
}

}  // namespace

double Quantile(std::vector<double> samples, double p) {
  MC_CHECK(!samples.empty() && p >= 0 && p <= 1, "{} samples, p {}", samples.size(), p);
  std::sort(samples.begin(), samples.end());
  const double at = p * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, samples.size() - 1);
  return std::lerp(samples[below], samples[above], at - static_cast<double>(below));
}

void Figures::Record(const std::string& name, double value, const char* unit, const char* against) {
  const auto known = std::find_if(figures_.begin(), figures_.end(), [&](const auto& f) { return f.name == name; });
  Figure& figure = known != figures_.end() ? *known : figures_.emplace_back(Figure{name, {}, unit, against});
  figure.runs.push_back(value);
}

Host DescribeHost() {
  Host host;
  host.cpu = CpuModel();
  host.cores = static_cast<int>(std::thread::hardware_concurrency());
  host.llc_bytes = LastLevelCacheBytes();
  utsname name{};
  if (uname(&name) == 0) host.kernel = name.release;
  host.tcp_congestion = FirstLine("/proc/sys/net/ipv4/tcp_congestion_control");
  return host;
}

std::string ReportJson(const Host& host, const std::vector<Figure>& figures) {
  nlohmann::ordered_json json{{"version", 1},
                              {"host",
                               {{"cpu", host.cpu},
                                {"cores", host.cores},
                                {"llc_bytes", host.llc_bytes},
                                {"kernel", host.kernel},
                                {"tcp_congestion", host.tcp_congestion},
                                {"iperf3", host.iperf3}}},
                              {"results", nlohmann::ordered_json::array()}};
  for (const Figure& figure : figures) {
    json["results"].push_back({{"name", figure.name},
                               {"value", Quantile(figure.runs, 0.5)},
                               {"unit", figure.unit},
                               {"min", Quantile(figure.runs, 0)},
                               {"max", Quantile(figure.runs, 1)},
                               {"n", figure.runs.size()},
                               {"against", figure.against}});
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string ReportTable(const Host& host, const std::vector<Figure>& figures) {
  std::string text = fmt::format("{}, {} cores, last-level cache {}, TCP {}, iperf3 {}\n\n", host.cpu, host.cores,
                                 FormatBytes(host.llc_bytes), host.tcp_congestion, host.iperf3);
  text += fmt::format("  {:<36} {:>10} {:<6} {:>10} {:>10} {:>3}  {}\n", "median of runs", "value", "unit", "min",
                      "max", "n", "against");
  for (const Figure& figure : figures) {
    text += fmt::format("  {:<36} {:>10.3f} {:<6} {:>10.3f} {:>10.3f} {:>3}  {}\n", figure.name,
                        Quantile(figure.runs, 0.5), figure.unit, Quantile(figure.runs, 0), Quantile(figure.runs, 1),
                        figure.runs.size(), figure.against);
  }
  return text;
}

}  // namespace mooncake::bench
