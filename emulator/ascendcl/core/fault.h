// Injected faults: which call or copy fails, when, and how. The grammar is in docs/emulator.md.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "core/json.h"
#include "core/report.h"

namespace aclemu {

struct Stop;

enum class Effect : uint8_t { kNone, kPartial, kCorrupt, kSlow, kDelay, kHang, kLost, kCapacity };
enum class Stage : uint8_t { kDefault, kCall, kExec };

// One moment at which a fault may happen.
struct FaultPoint {
  enum class Moment : uint8_t {
    kCall,    // an API function begins
    kSubmit,  // an asynchronous copy passed its checks and is about to be queued
    kCopy,    // a synchronous copy is about to move bytes
    kExec     // an asynchronous task runs
  };
  Moment moment;
  Api api;
  int direction = -1;  // of a copy
  int device = -1;
  uint64_t bytes = 0;
  int64_t stream = -1;  // number of the stream, see Stream::number
};

struct FaultRule {
  std::string text;        // for messages
  std::vector<bool> apis;  // functions it is about, by Api; empty for a direction
  int direction = -1;      // or copies of this direction
  int device = -1;
  uint32_t thread = 0;  // 0: any
  int64_t stream = -1;
  uint64_t min_bytes = 0, max_bytes = UINT64_MAX;
  Stage stage = Stage::kDefault;
  uint64_t nth = 0, every = 0, times = 0, after_ms = 0;
  double probability = 0;
  uint64_t random = 1;     // state of its own generator, begins as the seed
  bool by_itself = false;  // fires when its time has come, without a call
  Effect effect = Effect::kNone;
  aclError code = ACL_SUCCESS;
  double factor = 1;
  uint64_t delay_ms = 0;
  uint64_t capacity = 0;

  uint64_t seen = 0, fired = 0;
  int64_t added_ns = 0;
};

// Adds the rules of the text, short form or JSON, to *out. False with the reason when it cannot be understood.
bool ParseFaults(const std::string& text, std::vector<FaultRule>* out, std::string* why);
// The same for the array "faults" of a JSON file.
bool ParseFaults(const JsonValue& array, std::vector<FaultRule>* out, std::string* why);

// What to do instead of, or together with, the work. code: 0 goes on with the work.
struct FaultAction {
  bool fires = false;
  Effect effect = Effect::kNone;
  aclError code = ACL_SUCCESS;
  double factor = 1;
  uint64_t later_ms = 0;  // a delay that is left to the caller: of a task in virtual time
};

// Thread safe.
class FaultPlan {
 public:
  static FaultPlan& Get();

  // False, and nothing is added, when the text cannot be parsed; "" removes all rules and ends all hangs.
  bool Add(const std::string& text, std::string* why);

  // Counts the moment in every rule it fits. Delays, hangs, device loss and shrinking are done in here; stop (may be
  // null) ends a delay or hang early. What is left for the caller is in the answer.
  FaultAction Check(const FaultPoint& point, const Stop* stop = nullptr) {
    return armed_.load(std::memory_order_relaxed) ? CheckSlow(point, stop) : FaultAction{};
  }
  bool armed() const { return armed_.load(std::memory_order_relaxed); }

  struct Count {
    std::string rule;
    uint64_t seen, fired;
  };
  std::vector<Count> Counts();  // of the present rules

  uint64_t fired() const { return fired_.load(std::memory_order_relaxed); }
  void ResetFired() { fired_.store(0, std::memory_order_relaxed); }

 private:
  FaultPlan();
  void Insert(std::vector<FaultRule> rules);
  FaultAction CheckSlow(const FaultPoint& point, const Stop* stop);
  FaultAction Act(const FaultRule& rule, const FaultPoint& point, const Stop* stop, uint64_t generation);
  void StartTimer(const FaultRule& rule);

  std::mutex mu_;
  std::vector<FaultRule> rules_;         // guarded by mu_
  std::atomic<uint64_t> generation_{0};  // grows when the rules are removed
  std::atomic<bool> armed_{false};
  std::atomic<uint64_t> fired_{0};
};

}  // namespace aclemu
