// Formatting of the outcome.
#include "replay/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/byte_size.h"
#include "device/memory_type.h"

namespace mooncake::replay {
namespace {

double PerSecond(uint64_t amount, double seconds) {
  return seconds > 0 ? static_cast<double>(amount) / seconds : 0.0;
}

uint64_t HitsOf(const Summary& summary, MemoryType type) {
  return summary.counts.hits_by_type[static_cast<size_t>(type)];
}

uint64_t Demotions(const Summary& summary) {
  uint64_t sum = 0;
  for (const auto& tier : summary.tiers) sum += tier.demotions();
  return sum;
}

uint64_t Drops(const Summary& summary) {
  uint64_t sum = 0;
  for (const auto& tier : summary.tiers) sum += tier.drops();
  return sum;
}

double Percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string TierRows(const Summary& summary) {
  std::string text = fmt::format("  {:<22} {:<12} {:>10} {:>10} {:>6} {:>9} {:>9} {:>9}\n", "client", "tier", "used",
                                 "capacity", "full", "hits", "demoted", "dropped");
  for (const auto& tier : summary.tiers) {
    const auto& now = tier.after;
    text += fmt::format("  {:<22} {:<12} {:>10} {:>10} {:>5.1f}% {:>9} {:>9} {:>9}{}\n", tier.endpoint,
                        MemoryTypeName(static_cast<MemoryType>(now.type)), FormatBytes(now.usage),
                        FormatBytes(now.capacity), Percent(now.usage, now.capacity), now.hits - tier.before.hits,
                        tier.demotions(), tier.drops(), tier.gone ? "  gone" : "");
  }
  return text;
}

nlohmann::ordered_json TierJson(const TierChange& tier) {
  return {{"client", tier.endpoint},
          {"name", tier.after.name},
          {"type", MemoryTypeName(static_cast<MemoryType>(tier.after.type))},
          {"capacity_bytes", tier.after.capacity},
          {"used_bytes_before", tier.before.usage},
          {"used_bytes", tier.after.usage},
          {"keys", tier.after.keys},
          {"hits", tier.after.hits - tier.before.hits},
          {"demotions", tier.demotions()},
          {"drops", tier.drops()},
          {"gone", tier.gone}};
}

}  // namespace

std::string SummaryTable(const Summary& summary) {
  const ReplayCounts& counts = summary.counts;
  std::string text = "\ntiers\n" + TierRows(summary) + "\nreplay\n";
  const auto row = [&text](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<22} {}\n", name, value);
  };
  row("requests",
      fmt::format("{} of {}{}", counts.requests, summary.requests_total, summary.interrupted ? "  (ended early)" : ""));
  row("blocks", fmt::format("{} of {} each", counts.blocks, FormatBytes(summary.options.block_bytes)));
  row("hit ratio", fmt::format("{:.4f}  ({} of {} blocks)", counts.HitRatio(), counts.hits, counts.blocks));
  row("ideal LRU hit ratio",
      fmt::format("{:.4f}  (one cache of {} blocks)", summary.ideal_hit_ratio, summary.ideal_capacity_blocks));
  row("difference", fmt::format("{:+.4f}", summary.HitRatioDifference()));
  row("hits from DRAM", std::to_string(HitsOf(summary, MemoryType::DRAM)));
  row("hits from NPU", std::to_string(HitsOf(summary, MemoryType::ASCEND_NPU)));
  row("remote / local hits", fmt::format("{} / {}", counts.remote_hits, counts.local_hits));
  row("gone before the get", std::to_string(counts.vanished));
  row("puts",
      fmt::format("{} new, {} already there, {} failed", counts.puts, counts.puts_present, counts.put_failures));
  row("failed look-ups, gets", fmt::format("{}, {}", counts.lookup_failures, counts.get_failures));
  row("demotions", std::to_string(Demotions(summary)));
  row("drops", std::to_string(Drops(summary)));
  row("bytes read", FormatBytes(counts.bytes_read));
  row("bytes written", FormatBytes(counts.bytes_written));
  row("time", fmt::format("{:.2f} s: {:.0f} blocks/s, {:.0f} MB/s moved", summary.seconds,
                          PerSecond(counts.blocks, summary.seconds),
                          PerSecond(counts.bytes_read + counts.bytes_written, summary.seconds) / 1e6));
  row("verification", !summary.options.verify
                          ? "off"
                          : fmt::format("{} blocks compared, {} errors", counts.verified, counts.verification_errors));
  return text;
}

std::string SummaryJson(const Summary& summary) {
  const ReplayCounts& counts = summary.counts;
  nlohmann::ordered_json json{
      {"version", 1},
      {"trace", summary.trace},
      {"requests_total", summary.requests_total},
      {"interrupted", summary.interrupted},
      {"block_bytes", summary.options.block_bytes},
      {"key_prefix", summary.options.key_prefix},
      {"speed", summary.speed},
      {"verify", summary.options.verify},
      {"requests", counts.requests},
      {"blocks", counts.blocks},
      {"hits", counts.hits},
      {"hit_ratio", counts.HitRatio()},
      {"ideal_hit_ratio", summary.ideal_hit_ratio},
      {"ideal_capacity_blocks", summary.ideal_capacity_blocks},
      {"hit_ratio_difference", summary.HitRatioDifference()},
      {"dram_hits", HitsOf(summary, MemoryType::DRAM)},
      {"npu_hits", HitsOf(summary, MemoryType::ASCEND_NPU)},
      {"remote_hits", counts.remote_hits},
      {"local_hits", counts.local_hits},
      {"vanished", counts.vanished},
      {"puts", counts.puts},
      {"puts_present", counts.puts_present},
      {"put_failures", counts.put_failures},
      {"get_failures", counts.get_failures},
      {"lookup_failures", counts.lookup_failures},
      {"demotions", Demotions(summary)},
      {"drops", Drops(summary)},
      {"bytes_read", counts.bytes_read},
      {"bytes_written", counts.bytes_written},
      {"blocks_verified", counts.verified},
      {"verification_errors", counts.verification_errors},
      {"seconds", summary.seconds},
      {"blocks_per_second", PerSecond(counts.blocks, summary.seconds)},
      {"bytes_per_second", PerSecond(counts.bytes_read + counts.bytes_written, summary.seconds)},
  };
  json["tiers"] = nlohmann::ordered_json::array();
  for (const auto& tier : summary.tiers) json["tiers"].push_back(TierJson(tier));
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace mooncake::replay
