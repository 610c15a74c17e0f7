// What differs between releases and chips. Each case opens the library of a profile in a process of its own.
#include <cstring>

#include "test/emulator_session.h"

namespace {

// The facade of one profile; ACL(name) calls through it.
void* Open(const std::string& profile, const char* library = "libascendcl.so") {
  std::string lib64 = ACLEMU_LIB64;
  if (profile != "strictest") lib64 += "-" + profile;
  void* handle = dlopen((lib64 + "/" + library).c_str(), RTLD_NOW | RTLD_GLOBAL);
  EXPECT_NE(handle, nullptr) << dlerror();
  return handle;
}
bool Has(const char* name) {
  return dlsym(RTLD_DEFAULT, name) != nullptr;
}
#define ACL(name) reinterpret_cast<decltype(&name)>(FindSide(#name))

struct Profiled {
  void* device = nullptr;
  void* pinned = nullptr;
  aclrtStream stream = nullptr;
  explicit Profiled(const std::string& profile) {
    Open(profile);
    EXPECT_EQ(ACL(aclInit)(nullptr), ACL_SUCCESS);
    EXPECT_EQ(ACL(aclrtSetDevice)(0), ACL_SUCCESS);
    EXPECT_EQ(ACL(aclrtMalloc)(&device, kBytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(ACL(aclrtMallocHost)(&pinned, kBytes), ACL_SUCCESS);
    EXPECT_EQ(ACL(aclrtCreateStream)(&stream), ACL_SUCCESS);
  }
  uint8_t* dev(size_t at) const { return static_cast<uint8_t*>(device) + at; }
  uint8_t* host(size_t at) const { return static_cast<uint8_t*>(pinned) + at; }
  aclError Async(void* dst, const void* src, size_t bytes, aclrtMemcpyKind kind) const {
    return ACL(aclrtMemcpyAsync)(dst, bytes, src, bytes, kind, stream);
  }
};

// Runs the body once per release with its number: 800 to 902; strictest comes last, as 999.
void ForEach(const std::function<void(const std::string&, int)>& body) {
  const std::pair<const char*, int> all[] = {{"8.0", 800}, {"8.1", 801},    {"8.5", 805},      {"9.0", 900},
                                             {"9.1", 901}, {"master", 902}, {"strictest", 999}};
  for (const auto& [name, number] : all) {
    SCOPED_TRACE(name);
    const std::string profile = name;
    const int release = number;
    InProcess({}, [&] { body(profile, release); });
  }
}

TEST(Profile, FunctionsOfLaterReleasesAreAbsent) {
  ForEach([](const std::string& profile, int release) {
    Open(profile);
    EXPECT_TRUE(Has("aclrtMemcpyAsync"));
    EXPECT_TRUE(Has("aclsysGetCANNVersion"));
    for (const char* name : {"aclrtHostRegister", "aclrtPointerGetAttributes", "aclrtStreamAbort",
                             "aclrtResetDeviceForce", "aclrtDeviceGetBareTgid"}) {
      EXPECT_EQ(Has(name), release >= 801) << name;
    }
    for (const char* name : {"aclrtHostRegisterV2", "aclFinalizeReference", "aclrtMemcpyBatchAsync",
                             "aclsysGetVersionNum", "aclrtGetDeviceInfo"}) {
      EXPECT_EQ(Has(name), release >= 805) << name;
    }
    EXPECT_EQ(Has("aclrtMemcpyBatchV2"), release >= 901);
    EXPECT_EQ(SIDE(aclemu_profile)(), profile);
  });
}

TEST(Profile, VersionsGrowWithTheReleases) {
  ForEach([](const std::string& profile, int release) {
    Profiled acl(profile);
    aclCANNPackageVersion version{};
    ASSERT_EQ(ACL(aclsysGetCANNVersion)(ACL_PKG_NAME_CANN, &version), ACL_SUCCESS);
    int expected = release == 999 ? 902 : release;
    EXPECT_EQ(atoi(version.majorVersion) * 100 + atoi(version.minorVersion), expected);
    EXPECT_EQ(strncmp(version.version, version.majorVersion, strlen(version.majorVersion)), 0);
    int32_t major = 0, minor = 0, patch = 0;
    ASSERT_EQ(ACL(aclrtGetVersion)(&major, &minor, &patch), ACL_SUCCESS);
    EXPECT_EQ(major, 1);
    if (release < 805) return;
    char package[] = "runtime", other[] = "no-such-package", text[128] = "";
    int32_t number = 0;
    ASSERT_EQ(ACL(aclsysGetVersionStr)(package, text), ACL_SUCCESS);
    EXPECT_STREQ(text, version.version);
    ASSERT_EQ(ACL(aclsysGetVersionNum)(package, &number), ACL_SUCCESS);
    EXPECT_EQ(number, expected / 100 * 10'000'000 + expected % 100 * 100'000);
    EXPECT_EQ(ACL(aclsysGetVersionNum)(other, &number), ACL_ERROR_INVALID_FILE);
  });
}

TEST(Profile, AlignmentOfAsynchronousCopies) {
  ForEach([](const std::string& profile, int release) {
    Profiled acl(profile);
    bool all = release <= 800 || release == 999, device = all || release == 801;
    EXPECT_EQ(acl.Async(acl.dev(32), acl.host(0), 64, ACL_MEMCPY_HOST_TO_DEVICE),
              all ? ACL_ERROR_RT_ADDR_UNALIGNED : ACL_SUCCESS);
    EXPECT_EQ(acl.Async(acl.dev(1024), acl.dev(32), 64, ACL_MEMCPY_DEVICE_TO_DEVICE),
              device ? ACL_ERROR_RT_ADDR_UNALIGNED : ACL_SUCCESS);
    EXPECT_EQ(ACL(aclrtSynchronizeStream)(acl.stream), ACL_SUCCESS);
  });
}

TEST(Profile, HostToHostIsNeverAsynchronous) {
  ForEach([](const std::string& profile, int) {
    Profiled acl(profile);
    EXPECT_EQ(acl.Async(acl.host(1024), acl.host(0), 64, ACL_MEMCPY_HOST_TO_HOST), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
  });
}

TEST(Profile, PageableMemoryIsRefusedOrCopiedAtOnce) {
  ForEach([](const std::string& profile, int release) {
    Profiled acl(profile);
    alignas(64) static uint8_t plain[64];
    bool copies = release >= 805 && release != 999;
    EXPECT_EQ(acl.Async(acl.device, plain, 64, ACL_MEMCPY_HOST_TO_DEVICE),
              copies ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(GetStats().pageable_async_fallbacks, copies ? 1u : 0u);
    if (release < 801) return;
    aclrtPtrAttributes attributes{};
    EXPECT_EQ(ACL(aclrtPointerGetAttributes)(plain, &attributes), copies ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(attributes.location.type, copies ? ACL_MEM_LOCATION_TYPE_UNREGISTERED : ACL_MEM_LOCATION_TYPE_HOST);
  });
}

TEST(Profile, WrongKindBetweenKnownPlacesIsCorrectedSince85) {
  ForEach([](const std::string& profile, int release) {
    Profiled acl(profile);
    bool corrects = release >= 805 && release != 999;
    EXPECT_EQ(acl.Async(acl.device, acl.pinned, 64, ACL_MEMCPY_DEVICE_TO_HOST),
              corrects ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID);
  });
}

TEST(Profile, EmptyCopiesSucceedOnMasterOnly) {
  ForEach([](const std::string& profile, int release) {
    Profiled acl(profile);
    aclError expected = release == 902 ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
    EXPECT_EQ(ACL(aclrtMemcpy)(acl.device, 64, acl.pinned, 0, ACL_MEMCPY_HOST_TO_DEVICE), expected);
    EXPECT_EQ(acl.Async(acl.device, acl.pinned, 0, ACL_MEMCPY_HOST_TO_DEVICE), expected);
    EXPECT_EQ(ACL(aclrtMemset)(acl.device, 64, 0, 0), expected);
    EXPECT_EQ(ACL(aclrtMemcpy)(nullptr, 64, acl.pinned, 0, ACL_MEMCPY_HOST_TO_DEVICE),
              release == 902 ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM);
  });
}

TEST(Profile, RepeatedInitTakesAReferenceSince85) {
  ForEach([](const std::string& profile, int release) {
    Open(profile);
    EXPECT_EQ(ACL(aclInit)(nullptr), ACL_SUCCESS);
    EXPECT_EQ(ACL(aclInit)(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
    if (release >= 805) {
      uint64_t left = 9;
      EXPECT_EQ(ACL(aclFinalizeReference)(&left), ACL_SUCCESS);
      EXPECT_EQ(left, 1u);
    }
    EXPECT_EQ(ACL(aclFinalize)(), ACL_SUCCESS);
    EXPECT_EQ(ACL(aclFinalize)(), ACL_ERROR_REPEAT_FINALIZE);
  });
}

TEST(Profile, BothLibrariesOfOneProfileShareTheirState) {
  InProcess({}, [] {
    Open("9.0");
    EXPECT_EQ(ACL(aclInit)(nullptr), ACL_SUCCESS);
    void* other = Open("9.0", "libacl_rt.so");
    auto init = reinterpret_cast<decltype(&aclInit)>(dlsym(other, "aclInit"));
    EXPECT_EQ(init(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
  });
}

TEST(Profile, LibrariesOfTwoProfilesEndTheProcess) {
  InProcess({}, [] { Open("9.0"), Open("8.1"); }, 24, "libraries of two profiles in one process: 9.0 and 8.1");
}

TEST(Profile, RulesOlderThanTheLibrariesEndTheProcess) {
  InProcess({{"ACLEMU_PROFILE", "8.1"}}, [] { Profiled acl("strictest"); }, 24, "needs the libraries of lib64-8.1");
  InProcess({{"ACLEMU_PROFILE", "7"}}, [] { Profiled acl("strictest"); }, 24, "must be 8.0.8.1");
}

TEST(Profile, TheKnobMayAskForStricterRulesThanTheLibraries) {
  InProcess({{"ACLEMU_PROFILE", "strictest"}}, [] {
    Profiled acl("8.5");
    EXPECT_FALSE(Has("aclrtMemcpyBatchV2"));
    EXPECT_EQ(acl.Async(acl.dev(32), acl.host(0), 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_ADDR_UNALIGNED);
  });
  InProcess({{"ACLEMU_PAGEABLE", "refuse"}}, [] {
    Profiled acl("8.5");
    alignas(64) static uint8_t plain[64];
    EXPECT_EQ(acl.Async(acl.device, plain, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
  });
}

TEST(Soc, NamesPaddingAndStreamLimits) {
  struct Row {
    const char* soc;
    const char* name;
    uint64_t paged_of_one_page;
    size_t streams;
  };
  for (Row row : {Row{"a2", "Ascend910B3", 8192, 1984}, Row{"a3", "Ascend910_9391", 8192, 1984},
                  Row{"310p", "Ascend310P3", 8192, 1024}, Row{"310b", "Ascend310B4", 8192, 512},
                  Row{"910", "Ascend910A", 8192, 2048}, Row{"950", "Ascend950PR", 4096, 1984}}) {
    SCOPED_TRACE(row.soc);
    InProcess({{"ACLEMU_SOC", row.soc}}, [&] {
      Profiled acl("strictest");
      EXPECT_STREQ(ACL(aclrtGetSocName)(), row.name);
      uint64_t before = GetStats().device_paged_bytes;
      void* block = nullptr;
      ASSERT_EQ(ACL(aclrtMalloc)(&block, 4096, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
      EXPECT_EQ(GetStats().device_paged_bytes - before, row.paged_of_one_page);
      aclrtStream stream = nullptr;
      for (size_t i = 1; i < row.streams; ++i) ASSERT_EQ(ACL(aclrtCreateStream)(&stream), ACL_SUCCESS) << i;
      EXPECT_EQ(ACL(aclrtCreateStream)(&stream), ACL_ERROR_RT_NO_STREAM_RESOURCE);
    });
  }
}

TEST(Soc, InferenceCardsHaveOtherMemoryAndNoHostRegistration) {
  InProcess({{"ACLEMU_SOC", "310p"}}, [] {
    Profiled acl("strictest");
    size_t free_bytes = 1, total = 1;
    EXPECT_EQ(ACL(aclrtGetMemInfo)(ACL_HBM_MEM, &free_bytes, &total), ACL_SUCCESS);
    EXPECT_EQ(total, 0u);
    EXPECT_EQ(ACL(aclrtGetMemInfo)(ACL_DDR_MEM, &free_bytes, &total), ACL_SUCCESS);
    EXPECT_EQ(total, 1024 * kMiB);
    alignas(4096) static uint8_t pages[4096];
    EXPECT_EQ(ACL(aclrtHostRegisterV2)(pages, 4096, ACL_HOST_REG_PINNED), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
  });
}

TEST(System, PropertiesAndIdsOfDevices) {
  InProcess({{"ACLEMU_SOC", "a3"}, {"ACLEMU_DEVICES", "4"}}, [] {
    Profiled acl("strictest");
    int64_t value = 0;
    EXPECT_EQ(ACL(aclrtGetDeviceInfo)(1, ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE, &value), ACL_SUCCESS);
    EXPECT_EQ(value, int64_t{1} << 30);
    EXPECT_EQ(ACL(aclrtGetDeviceInfo)(4, ACL_DEV_ATTR_AICORE_CORE_NUM, &value), ACL_ERROR_RT_INVALID_DEVICEID);
    uint64_t links = 0;
    EXPECT_EQ(ACL(aclrtGetDevicesTopo)(0, 1, &links), ACL_SUCCESS);
    EXPECT_EQ(links, ACL_RT_DEVS_TOPOLOGY_SIO);
    EXPECT_EQ(ACL(aclrtGetDevicesTopo)(1, 2, &links), ACL_SUCCESS);
    EXPECT_EQ(links, ACL_RT_DEVS_TOPOLOGY_HCCS);
    int32_t active = -1, id = -1;
    EXPECT_EQ(ACL(aclrtGetPrimaryCtxState)(0, nullptr, &active), ACL_SUCCESS);
    EXPECT_EQ(active, 1);
    EXPECT_EQ(ACL(aclrtGetPrimaryCtxState)(1, nullptr, &active), ACL_SUCCESS);
    EXPECT_EQ(active, 0);
    EXPECT_EQ(ACL(aclrtGetPhyDevIdByLogicDevId)(3, &id), ACL_SUCCESS);
    EXPECT_EQ(id, 3);
    EXPECT_EQ(ACL(aclrtDeviceGetBareTgid)(&id), ACL_SUCCESS);
    EXPECT_GT(id, 0);
  });
}

}  // namespace
