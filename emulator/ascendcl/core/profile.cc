// The tables of releases and chips.
#include "core/profile.h"

#include <atomic>

#include "aclemu.h"
#include "core/config.h"

namespace aclemu {
namespace {

// The minor numbers of the interface are assumed; only their order is known.
constexpr ReleaseTraits kReleases[] = {
    {"8.0", "8.0.0", 800, 12, Aligned::kAll, false, false, false, false, ACL_ERROR_RT_PARAM_INVALID},
    {"8.1", "8.1.0", 801, 13, Aligned::kDeviceToDevice, false, false, false, false, ACL_ERROR_RT_PARAM_INVALID},
    {"8.5", "8.5.0", 805, 15, Aligned::kNone, true, true, false, true, ACL_ERROR_RT_PARAM_INVALID},
    {"9.0", "9.0.0", 900, 16, Aligned::kNone, true, true, false, true, ACL_ERROR_RT_PARAM_INVALID},
    {"9.1", "9.1.0", 901, 17, Aligned::kNone, true, true, false, true, ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC},
    {"master", "9.2.0", 902, 17, Aligned::kNone, true, true, true, true, ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC},
    {"strictest", "9.2.0", 902, 17, Aligned::kAll, false, false, false, true, ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC},
};

constexpr SocTraits kSocs[] = {
    {"a2", "Ascend910B3", 32, 1984, 2013, true, true, 20},    {"a3", "Ascend910_9391", 32, 1984, 2013, true, true, 24},
    {"310p", "Ascend310P3", 32, 1024, 1005, false, false, 8}, {"310b", "Ascend310B4", 32, 512, 1005, false, false, 1},
    {"910", "Ascend910A", 32, 2048, 1005, true, false, 32},   {"950", "Ascend950PR", 0, 1984, 2049, true, true, 32},
};

std::atomic<const ReleaseTraits*> facade_release{nullptr};

template <typename Row, size_t n>
const Row* Find(const Row (&rows)[n], const std::string& name) {
  for (const Row& row : rows) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

template <typename Row, size_t n>
std::string Names(const Row (&rows)[n]) {
  std::string names;
  for (const Row& row : rows) names += std::string(names.empty() ? "" : "|") + row.name;
  return names;
}

}  // namespace

const ReleaseTraits* FindRelease(const std::string& name) {
  return Find(kReleases, name);
}
const SocTraits* FindSoc(const std::string& name) {
  return Find(kSocs, name);
}
std::string ReleaseNames() {
  return Names(kReleases);
}
std::string SocNames() {
  return Names(kSocs);
}

const ReleaseTraits& FacadeRelease() {
  const ReleaseTraits* release = facade_release.load();
  return release != nullptr ? *release : *FindRelease("strictest");
}

}  // namespace aclemu

extern "C" __attribute__((visibility("default"))) const char* aclemu_profile(void) {
  return aclemu::Settings().release->name;
}

// Called by each facade library when it is loaded.
extern "C" __attribute__((visibility("default"))) void aclemu_facade_loaded(const char* profile) {
  using namespace aclemu;
  const ReleaseTraits* release = FindRelease(profile);
  const ReleaseTraits* before = nullptr;
  if (release == nullptr) RefuseConfig(std::string("a library of the unknown profile ") + profile + " was loaded");
  if (facade_release.compare_exchange_strong(before, release) || before == release) return;
  RefuseConfig(std::string("libraries of two profiles in one process: ") + before->name + " and " + release->name);
}
