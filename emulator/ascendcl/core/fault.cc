// Parses and fires the rules of ACLEMU_FAULT.
#include "core/fault.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/config.h"

namespace aclemu {
namespace {

constexpr const char* kNames[] = {
#define ACL_API(ret, name, params, args) #name,
#include "rules/api_list.inc"
#undef ACL_API
    "H2D", "D2H", "D2D"};

// These only read what the thread's last call left.
constexpr const char* kCannotFail[] = {"aclGetRecentErrMsg", "aclrtPeekAtLastError", "aclrtGetLastError"};

std::string Trim(const std::string& text) {
  size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

bool ParseNumber(const std::string& text, uint64_t limit, uint64_t* out) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) return false;
  errno = 0;
  *out = strtoull(text.c_str(), nullptr, 10);
  return errno == 0 && *out >= 1 && *out <= limit;
}

}  // namespace

FaultPlan& FaultPlan::Get() {
  static FaultPlan* const plan = new FaultPlan;
  return *plan;
}

FaultPlan::FaultPlan() {
  std::string why;
  if (!Settings().fault.empty() && !Add(Settings().fault, &why)) {
    fprintf(stderr, "aclemu: ACLEMU_FAULT: %s\n", why.c_str());
    _exit(kBadConfigExit);
  }
}

bool FaultPlan::ParseRule(const std::string& text, Rule* rule, std::string* why) {
  size_t at = text.find('@'), equals = text.find('=');
  uint64_t code = 0;
  if (at == std::string::npos || equals == std::string::npos || equals < at ||
      !ParseNumber(Trim(text.substr(at + 1, equals - at - 1)), UINT64_MAX, &rule->nth) ||
      !ParseNumber(Trim(text.substr(equals + 1)), 999999, &code)) {
    *why = "'" + text + "' is not name@N=code";
    return false;
  }
  rule->name = Trim(text.substr(0, at));
  rule->code = static_cast<aclError>(code);
  for (const char* name : kCannotFail) {
    if (rule->name != name) continue;
    *why = "'" + rule->name + "' cannot fail";
    return false;
  }
  for (const char* name : kNames) {
    if (rule->name == name) return true;
  }
  *why = "'" + rule->name + "' is neither an ACL function nor H2D, D2H, D2D";
  return false;
}

bool FaultPlan::Add(const std::string& text, std::string* why) {
  std::vector<Rule> parsed;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(';', begin), text.size());
    std::string one = Trim(text.substr(begin, end - begin));
    begin = end + 1;
    if (one.empty()) continue;
    Rule rule{};
    if (!ParseRule(one, &rule, why)) return false;
    parsed.push_back(std::move(rule));
  }
  std::lock_guard lock(mu_);
  if (Trim(text).empty()) rules_.clear();
  rules_.insert(rules_.end(), parsed.begin(), parsed.end());
  armed_.store(!rules_.empty(), std::memory_order_relaxed);
  return true;
}

aclError FaultPlan::CheckSlow(const char* name) {
  std::lock_guard lock(mu_);
  aclError code = ACL_SUCCESS;
  for (Rule& rule : rules_) {
    if (rule.name == name && ++rule.seen == rule.nth && code == ACL_SUCCESS) code = rule.code;
  }
  if (code != ACL_SUCCESS) fired_.fetch_add(1, std::memory_order_relaxed);
  return code;
}

}  // namespace aclemu
