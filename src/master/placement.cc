// Ranking, and the cap on newcomers' share.
#include "master/placement.h"

#include <algorithm>
#include <tuple>

#include "common/check.h"

namespace mooncake {
namespace {

constexpr double kShareOfNewcomers = 2;           // times their share of the capacity
constexpr double kMostCredit = 64.0 * (1 << 20);  // bytes that may be saved up
constexpr double kEvenEnough = 0.02;              // fill below the mean that still counts as level

double Fill(const ClientLoad& load, uint64_t size) {
  const double used = static_cast<double>(load.usage + load.routed_since_report + size);
  return std::min(1.0, used / static_cast<double>(load.capacity));
}

}  // namespace

Placement::Placement(std::vector<Candidate> candidates) : candidates_(std::move(candidates)) {
  double used = 0;
  for (const Candidate& candidate : candidates_) {
    const ClientLoad& load = *candidate.load;
    MC_CHECK(load.capacity > 0, "a candidate without capacity");
    total_capacity_ += load.capacity;
    used += Fill(load, 0) * static_cast<double>(load.capacity);
  }
  if (total_capacity_ > 0) mean_fill_ = used / static_cast<double>(total_capacity_);
}

bool Placement::IsCapped(size_t i) const {
  return candidates_[i].newcomer || Fill(*candidates_[i].load, 0) + kEvenEnough < mean_fill_;
}

bool Placement::IsBetter(size_t a, size_t b, uint64_t size) const {
  const auto rank = [&](const Candidate& candidate) {
    const ClientLoad& load = *candidate.load;
    const double turnover = static_cast<double>(load.routed_total) / static_cast<double>(load.capacity);
    return std::tuple(candidate.preference, -(1.0 - Fill(load, size)) * candidate.weight, turnover);
  };
  return rank(candidates_[a]) < rank(candidates_[b]);
}

void Placement::EarnCredit(uint64_t size) {
  for (const Candidate& candidate : candidates_) {
    ClientLoad& load = *candidate.load;
    const double share = static_cast<double>(load.capacity) / static_cast<double>(total_capacity_);
    const double most = std::max(kMostCredit, static_cast<double>(size));
    load.credit = std::min(most, load.credit + kShareOfNewcomers * share * static_cast<double>(size));
  }
}

void Placement::Charge(size_t i, uint64_t size) {
  ClientLoad& load = *candidates_[i].load;
  load.routed_since_report += size;
  load.routed_total += size;
  load.credit -= std::min(load.credit, static_cast<double>(size));
}

std::vector<uint32_t> Placement::Pick(uint64_t size, size_t copies) {
  EarnCredit(size);
  std::vector<uint32_t> picked;
  const auto look = [&](bool respect_caps) {
    int64_t best = -1;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (!CanHold(i, size) || std::ranges::find(picked, i) != picked.end()) continue;
      if (respect_caps && IsCapped(i) && candidates_[i].load->credit < static_cast<double>(size)) continue;
      if (best < 0 || IsBetter(i, static_cast<size_t>(best), size)) best = static_cast<int64_t>(i);
    }
    return best;
  };
  while (picked.size() < copies) {
    int64_t best = look(/*respect_caps=*/true);
    if (best < 0) best = look(/*respect_caps=*/false);  // better too much for one than no place at all
    if (best < 0) break;
    picked.push_back(static_cast<uint32_t>(best));
    Charge(static_cast<size_t>(best), size);
  }
  return picked;
}

}  // namespace mooncake
