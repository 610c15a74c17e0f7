// What the contract tests share. They link with -lascendcl only and use functions of later releases through weak
// references, so that one program runs on every release of CANN and on the emulator.
#pragma once
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "acl/acl.h"

#define WEAK(name) extern "C" __attribute__((weak)) decltype(name) name
WEAK(aclFinalizeReference);
WEAK(aclrtCtxGetCurrentDefaultStream);
WEAK(aclrtDeviceGetBareTgid);
WEAK(aclrtDevicePeerAccessStatus);
WEAK(aclrtEventGetTimestamp);
WEAK(aclrtFreeWithDevSync);
WEAK(aclrtGetDeviceInfo);
WEAK(aclrtGetPrimaryCtxState);
WEAK(aclrtGetStreamAvailableNum);
WEAK(aclrtHostRegister);
WEAK(aclrtHostRegisterV2);
WEAK(aclrtHostUnregister);
WEAK(aclrtLaunchHostFunc);
WEAK(aclrtMallocHostWithCfg);
WEAK(aclrtMemcpyBatch);
WEAK(aclrtMemcpyBatchAsync);
WEAK(aclrtPointerGetAttributes);
WEAK(aclrtResetDeviceForce);
WEAK(aclrtStreamAbort);
WEAK(aclrtStreamGetFlags);
WEAK(aclrtStreamGetId);
WEAK(aclrtStreamGetPriority);
WEAK(aclrtStreamWaitEventWithTimeout);
WEAK(aclrtSynchronizeDeviceWithTimeout);
WEAK(aclrtSynchronizeEventWithTimeout);
WEAK(aclsysGetVersionNum);
WEAK(aclsysGetVersionStr);
#undef WEAK

// Ends the test when this release lacks the function.
#define NEEDS(name) \
  if (name == nullptr) GTEST_SKIP() << #name " is newer than this release"

// Releases as 800 for 8.0 ... 902 for what comes after 9.1.
constexpr int kFirst = 0;
constexpr int kLast = 998;
constexpr int kStrictest = 999;  // the emulator with the rules of all releases

inline int Version() {
  auto* profile = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "aclemu_profile"));
  if (profile != nullptr && strcmp(profile(), "strictest") == 0) return kStrictest;
  aclCANNPackageVersion version{};
  if (aclsysGetCANNVersion(ACL_PKG_NAME_CANN, &version) != ACL_SUCCESS) return 800;
  return atoi(version.majorVersion) * 100 + atoi(version.minorVersion);
}

struct ForReleases {
  int from, to;
  aclError code;
};
constexpr aclError kUndefined = -1;  // the release does not say, or does not say it before the copy has run

// The code of this release. The first row also holds for the strictest emulation; no row: kUndefined.
inline aclError ByRelease(std::initializer_list<ForReleases> rows) {
  int version = Version();
  if (version == kStrictest) return rows.begin()->code;
  for (const ForReleases& row : rows) {
    if (version >= row.from && version <= row.to) return row.code;
  }
  return kUndefined;
}

// For beliefs that nobody has confirmed on hardware: one of several codes.
inline void ExpectAnyOf(aclError code, std::initializer_list<aclError> any) {
  EXPECT_NE(std::find(any.begin(), any.end(), code), any.end()) << "unexpected code " << code;
}

constexpr size_t kBytes = 64 << 10;

// A page aligned piece of ordinary memory.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes) {
    map_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    EXPECT_NE(map_, MAP_FAILED);
  }
  ~Pages() { munmap(map_, bytes_); }
  uint8_t* data() { return static_cast<uint8_t*>(map_); }

 private:
  void* map_;
  size_t bytes_;
};

// Device 0 is set, with one of each object.
class Acl : public testing::Test {
 protected:
  void SetUp() override {
    aclError code = aclInit(nullptr);
    ASSERT_TRUE(code == ACL_SUCCESS || code == ACL_ERROR_REPEAT_INITIALIZE) << code;
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    ASSERT_EQ(aclrtMallocAlign32(&device_, kBytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    ASSERT_EQ(aclrtMallocHost(&pinned_, kBytes), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateStream(&stream_), ACL_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyStream(stream_), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreeHost(pinned_), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(device_), ACL_SUCCESS);
    EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
  }

  bool HasTwoDevices() {
    uint32_t count = 0;
    return aclrtGetDeviceCount(&count) == ACL_SUCCESS && count > 1;
  }
  uint8_t* dev(size_t at = 0) const { return static_cast<uint8_t*>(device_) + at; }
  uint8_t* host(size_t at = 0) const { return static_cast<uint8_t*>(pinned_) + at; }
  aclError Async(void* dst, const void* src, size_t bytes, aclrtMemcpyKind kind) const {
    return aclrtMemcpyAsync(dst, bytes, src, bytes, kind, stream_);
  }

  void* device_ = nullptr;
  void* pinned_ = nullptr;
  aclrtStream stream_ = nullptr;
};

inline void* Offset(void* base, size_t bytes) {
  return static_cast<uint8_t*>(base) + bytes;
}
