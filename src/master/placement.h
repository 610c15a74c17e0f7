// Which client a new value goes to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mooncake {

// How full one client is, and what was sent its way.
struct ClientLoad {
  uint64_t capacity = 0;
  uint64_t largest_tier = 0;
  uint64_t usage = 0;                // as it said last
  uint64_t routed_since_report = 0;  // bytes placed there since then
  uint64_t routed_total = 0;
  double credit = 0;  // bytes that a client whose share is capped may still get
};

// Places the values of one request. Not thread safe; the loads outlive it and are kept up to date by it.
//
// The emptiest client by share of its capacity gets the next value; of full ones the one that was given least for its
// capacity, so that all of them turn over evenly. A client that is new, or emptier than the mean, gets at most twice
// its share of the capacity: it fills in half the time or more, but the others do not stop receiving, and the bandwidth
// of one client does not become that of the cluster.
class Placement {
 public:
  struct Candidate {
    ClientLoad* load = nullptr;  // capacity above 0
    uint32_t preference = 0;     // smaller ones first, whatever their loads
    double weight = 1;           // of its free share
    bool newcomer = false;
  };

  explicit Placement(std::vector<Candidate> candidates);

  // Positions of up to `copies` different candidates, best first; empty: none has a tier that large. All of them are
  // charged.
  std::vector<uint32_t> Pick(uint64_t size, size_t copies);

 private:
  bool CanHold(size_t i, uint64_t size) const { return candidates_[i].load->largest_tier >= size; }
  bool IsCapped(size_t i) const;
  // Less is better.
  bool IsBetter(size_t a, size_t b, uint64_t size) const;
  void EarnCredit(uint64_t size);
  void Charge(size_t i, uint64_t size);

  std::vector<Candidate> candidates_;
  uint64_t total_capacity_ = 0;
  double mean_fill_ = 0;
};

}  // namespace mooncake
