// Injected faults: "the n-th call of this function returns that code".
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "acl/acl.h"

namespace aclemu {

// Rules "name@N=code" separated by ';'. name is an ACL function (fires instead of the call) or H2D, D2H, D2D (fires
// instead of the copy: a synchronous one returns the code, an asynchronous one shows it at the next synchronize).
// Each rule counts for itself, from the moment it is added, and fires once. Thread safe.
class FaultPlan {
 public:
  static FaultPlan& Get();

  // False, and nothing is added, when the text cannot be parsed; "" removes all rules.
  bool Add(const std::string& text, std::string* why);

  // The code to return instead of doing the work, or 0.
  aclError Check(const char* name) { return armed_.load(std::memory_order_relaxed) ? CheckSlow(name) : ACL_SUCCESS; }

  uint64_t fired() const { return fired_.load(std::memory_order_relaxed); }
  void ResetFired() { fired_.store(0, std::memory_order_relaxed); }

 private:
  struct Rule {
    std::string name;
    uint64_t nth;
    aclError code;
    uint64_t seen = 0;
  };

  FaultPlan();
  static bool ParseRule(const std::string& text, Rule* rule, std::string* why);
  aclError CheckSlow(const char* name);

  std::mutex mu_;
  std::vector<Rule> rules_;  // guarded by mu_
  std::atomic<bool> armed_{false};
  std::atomic<uint64_t> fired_{0};
};

}  // namespace aclemu
