// Virtual memory: reserved addresses, physical memory, mappings, shareable handles.
#include <cstring>

#include "test/process_peer.h"

namespace {

constexpr size_t kUnit = 2 * kMiB;

aclrtPhysicalMemProp Prop(uint32_t device = 0, aclrtMemAttr attr = ACL_HBM_MEM_HUGE) {
  aclrtPhysicalMemProp prop{};
  prop.handleType = ACL_MEM_HANDLE_TYPE_NONE;
  prop.allocationType = ACL_MEM_ALLOCATION_TYPE_PINNED;
  prop.memAttr = attr;
  prop.location = {device, ACL_MEM_LOCATION_TYPE_DEVICE};
  return prop;
}

aclrtDrvMemHandle Physical(size_t bytes, uint32_t device = 0, aclrtMemAttr attr = ACL_HBM_MEM_HUGE) {
  aclrtPhysicalMemProp prop = Prop(device, attr);
  aclrtDrvMemHandle handle = nullptr;
  EXPECT_EQ(aclrtMallocPhysical(&handle, bytes, &prop, 0), ACL_SUCCESS);
  return handle;
}

uint8_t* Reserve(size_t bytes) {
  void* va = nullptr;
  EXPECT_EQ(aclrtReserveMemAddress(&va, bytes, 0, nullptr, 1), ACL_SUCCESS);
  return static_cast<uint8_t*>(va);
}

aclError Set(void* ptr, uint8_t value, size_t bytes) {
  return aclrtMemset(ptr, bytes, value, bytes);
}

uint8_t ByteAt(const void* ptr) {
  uint8_t byte = 0;
  EXPECT_EQ(aclrtMemcpy(&byte, 1, ptr, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  return byte;
}

TEST(Vmm, AMappingIsMemoryAndFreeWaitsForTheLastUnmap) {
  InProcess({{"ACLEMU_HBM", "16M"}}, [] {
    Start();
    uint64_t start = FreeBytes();
    uint8_t* va = Reserve(4 * kUnit);
    aclrtDrvMemHandle handle = Physical(2 * kUnit);
    EXPECT_EQ(FreeBytes(), start - 2 * kUnit);
    ASSERT_EQ(aclrtMapMem(va, 2 * kUnit, 0, handle, 0), ACL_SUCCESS);
    EXPECT_EQ(ByteAt(va), 0xA5);
    EXPECT_EQ(Set(va, 0x33, 2 * kUnit), ACL_SUCCESS);
    // A second view of the same bytes.
    ASSERT_EQ(aclrtMapMem(va + 2 * kUnit, 2 * kUnit, 0, handle, 0), ACL_SUCCESS);
    EXPECT_EQ(ByteAt(va + 2 * kUnit + 5), 0x33);
    EXPECT_EQ(aclrtFreePhysical(handle), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreePhysical(handle), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(FreeBytes(), start - 2 * kUnit);
    EXPECT_EQ(aclrtUnmapMem(va), ACL_SUCCESS);
    EXPECT_EQ(ByteAt(va + 2 * kUnit), 0x33);
    EXPECT_EQ(aclrtReleaseMemAddress(va), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtUnmapMem(va + 2 * kUnit), ACL_SUCCESS);
    EXPECT_EQ(FreeBytes(), start);
    EXPECT_EQ(aclrtReleaseMemAddress(va), ACL_SUCCESS);
    EXPECT_EQ(aclrtReleaseMemAddress(va), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(GetStats().device_paged_bytes, 0u);
  });
}

TEST(Vmm, NeighbouringMappingsAreOneRange) {
  InProcess({{"ACLEMU_HBM", "32M"}}, [] {
    Start();
    uint8_t* va = Reserve(4 * kUnit);
    for (size_t i = 0; i < 3; ++i) {
      aclrtDrvMemHandle handle = Physical(kUnit);
      ASSERT_EQ(aclrtMapMem(va + i * kUnit, kUnit, 0, handle, 0), ACL_SUCCESS);
      EXPECT_EQ(aclrtFreePhysical(handle), ACL_SUCCESS);
    }
    std::vector<uint8_t> in(3 * kUnit), out(3 * kUnit);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(i / 4096 + i);
    ASSERT_EQ(aclrtMemcpy(va, in.size(), in.data(), in.size(), ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpy(out.data(), out.size(), va, out.size(), ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    EXPECT_EQ(in, out);
    // V1: what is not mapped.
    EXPECT_EQ(Set(va, 0, 4 * kUnit), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(Set(va + 3 * kUnit, 0, 1), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtUnmapMem(va + kUnit), ACL_SUCCESS);
    EXPECT_EQ(Set(va, 0, kUnit + 1), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(Set(va + kUnit, 0, 1), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(ByteAt(va + 2 * kUnit), in[2 * kUnit]);
    EXPECT_EQ(GetStats().violations, 4u);
  });
}

TEST(Vmm, V1Arguments) {
  InProcess({{"ACLEMU_HBM", "16M"}}, [] {
    Start();
    void* va = nullptr;
    auto reserve = [&](size_t size, size_t alignment, uintptr_t expect, uint64_t flags) {
      return aclrtReserveMemAddress(&va, size, alignment, reinterpret_cast<void*>(expect), flags);
    };
    EXPECT_EQ(reserve(kMiB, 0, 0, 0), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(reserve(kUnit, kUnit, 0, 0), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(reserve(kUnit, 0, 0x1000'0000, 0), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(reserve(kUnit, 0, 0, 2), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(reserve(kUnit, 0, 0x1500'0000'0000, 0), ACL_SUCCESS);
    EXPECT_EQ(aclrtReserveMemAddressNoUCMemory(&va, kUnit, 0, nullptr, 1), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtReserveMemAddressNoUCMemory(&va, 1 << 30, 0, reinterpret_cast<void*>(0x1500'0000'0000), 1),
              ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtReserveMemAddressNoUCMemory(&va, 1 << 30, 0, reinterpret_cast<void*>(0x2900'0000'0000), 1),
              ACL_SUCCESS);

    aclrtPhysicalMemProp prop = Prop();
    aclrtDrvMemHandle handle = nullptr;
    EXPECT_EQ(aclrtMallocPhysical(&handle, kMiB, &prop, 0), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMallocPhysical(&handle, kUnit, &prop, 1), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMallocPhysical(&handle, 32 * kMiB, &prop, 0), ACL_ERROR_RT_MEMORY_ALLOCATION);
    EXPECT_EQ(aclrtMallocPhysical(&handle, kUnit, nullptr, 0), ACL_ERROR_INVALID_PARAM);
    size_t granularity = 0;
    EXPECT_EQ(aclrtMemGetAllocationGranularity(&prop, ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, &granularity), ACL_SUCCESS);
    EXPECT_EQ(granularity, kUnit);
    aclrtPhysicalMemProp empty{};
    EXPECT_EQ(aclrtMemGetAllocationGranularity(&empty, ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, &granularity),
              ACL_ERROR_INVALID_PARAM);
    prop.memAttr = ACL_HBM_MEM_HUGE1G;
    EXPECT_EQ(aclrtMemGetAllocationGranularity(&prop, ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED, &granularity),
              ACL_SUCCESS);
    EXPECT_EQ(granularity, 1u << 30);
    prop.memAttr = ACL_HBM_MEM_HUGE;
    prop.location.type = ACL_MEM_LOCATION_TYPE_HOST;
    EXPECT_EQ(aclrtMallocPhysical(&handle, kUnit, &prop, 0), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);

    handle = Physical(2 * kUnit);
    uint8_t* room = Reserve(4 * kUnit);
    EXPECT_EQ(aclrtMapMem(room, kUnit, 0, handle, 0), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMapMem(room, 2 * kUnit, kUnit, handle, 0), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMapMem(room, 2 * kUnit, 0, handle, 1), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMapMem(room + 4096, 2 * kUnit, 0, handle, 0), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMapMem(room + 3 * kUnit, 2 * kUnit, 0, handle, 0), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMapMem(room + kUnit, 2 * kUnit, 0, handle, 0), ACL_SUCCESS);
    EXPECT_EQ(aclrtMapMem(room, 2 * kUnit, 0, handle, 0), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtUnmapMem(room), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtUnmapMem(room + 2 * kUnit), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtFree(room), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtFree(room + kUnit), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtUnmapMem(room + kUnit), ACL_SUCCESS);
  });
}

TEST(Vmm, UnmapWaitsForQueuedTasks) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    uint8_t* va = Reserve(2 * kUnit);
    ASSERT_EQ(aclrtMapMem(va, kUnit, 0, Physical(kUnit), 0), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemsetAsync(va, kUnit, 1, kUnit, acl.stream), ACL_SUCCESS);
    // The range is another one now; the task counts all the same.
    ASSERT_EQ(aclrtMapMem(va + kUnit, kUnit, 0, Physical(kUnit), 0), ACL_SUCCESS);
    EXPECT_EQ(aclrtUnmapMem(va + kUnit), ACL_SUCCESS);
    EXPECT_EQ(aclrtUnmapMem(va), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtUnmapMem(va), ACL_SUCCESS);
  });
}

TEST(Vmm, RetainedHandlesCount) {
  InProcess({{"ACLEMU_HBM", "16M"}}, [] {
    Start();
    uint8_t* va = Reserve(kUnit);
    aclrtDrvMemHandle handle = Physical(kUnit), again = nullptr;
    ASSERT_EQ(aclrtMapMem(va, kUnit, 0, handle, 0), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemRetainAllocationHandle(va + 100, &again), ACL_SUCCESS);
    EXPECT_EQ(again, handle);
    EXPECT_EQ(aclrtUnmapMem(va), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreePhysical(handle), ACL_SUCCESS);
    EXPECT_EQ(FreeBytes(), 14 * kMiB);
    EXPECT_EQ(aclrtMapMem(va, kUnit, 0, again, 0), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreePhysical(again), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemRetainAllocationHandle(va, &again), ACL_SUCCESS);  // only mapped by now
    EXPECT_EQ(aclrtUnmapMem(va), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemRetainAllocationHandle(va, &again), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtFreePhysical(again), ACL_SUCCESS);
    EXPECT_EQ(FreeBytes(), 16 * kMiB);
  });
}

TEST(Vmm, AnotherDeviceNeedsAccess) {
  InProcess({}, [] {
    Session acl;
    uint8_t* va = Reserve(2 * kUnit);
    ASSERT_EQ(aclrtMapMem(va, kUnit, 0, Physical(kUnit, 1), 0), ACL_SUCCESS);
    auto copy = [&] { return aclrtMemcpy(acl.device, kBytes, va, kBytes, ACL_MEMCPY_DEVICE_TO_DEVICE); };
    EXPECT_EQ(copy(), ACL_ERROR_RT_PARAM_INVALID);
    aclrtMemLocation here{0, ACL_MEM_LOCATION_TYPE_DEVICE}, there{1, ACL_MEM_LOCATION_TYPE_DEVICE};
    uint64_t flags = 7;
    EXPECT_EQ(aclrtMemGetAccess(va, &here, &flags), ACL_SUCCESS);
    EXPECT_EQ(flags, uint64_t{ACL_RT_MEM_ACCESS_FLAGS_NONE});
    EXPECT_EQ(aclrtMemGetAccess(va, &there, &flags), ACL_SUCCESS);
    EXPECT_EQ(flags, uint64_t{ACL_RT_MEM_ACCESS_FLAGS_READWRITE});
    aclrtMemAccessDesc desc{ACL_RT_MEM_ACCESS_FLAGS_READWRITE, here, {}};
    EXPECT_EQ(aclrtMemSetAccess(va, 2 * kUnit, &desc, 1), ACL_ERROR_RT_PARAM_INVALID);  // not all mapped
    EXPECT_EQ(aclrtMemSetAccess(va, kUnit, &desc, 1), ACL_SUCCESS);
    EXPECT_EQ(copy(), ACL_SUCCESS);
    // A copy may not cross to memory of another device.
    ASSERT_EQ(aclrtMapMem(va + kUnit, kUnit, 0, Physical(kUnit, 0), 0), ACL_SUCCESS);
    EXPECT_EQ(Set(va, 0, 2 * kUnit), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(Set(va, 0, kUnit), ACL_SUCCESS);
  });
}

TEST(Vmm, NormalPagesFillHolesAndAResetEndsAll) {
  InProcess({{"ACLEMU_HBM", "8M"}}, [] {
    Start();
    void* block = nullptr;
    ASSERT_EQ(aclrtMallocAlign32(&block, 4096, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    uint8_t* va = Reserve(kUnit);
    ASSERT_EQ(aclrtMapMem(va, kUnit, 0, Physical(kUnit, 0, ACL_HBM_MEM_NORMAL), 0), ACL_SUCCESS);
    EXPECT_EQ(Set(va, 9, kUnit), ACL_SUCCESS);
    Physical(kUnit);
    ASSERT_EQ(aclrtResetDeviceForce(0), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(FreeBytes(), 8 * kMiB);
    EXPECT_EQ(aclrtUnmapMem(va), ACL_ERROR_RT_PARAM_INVALID);
  });
}

TEST(Vmm, LeaksAreNamed) {
  InProcess(
      {{"ACLEMU_LEAK_FATAL", "1"}},
      [] {
        Start();
        uint8_t* va = Reserve(kUnit);
        ASSERT_EQ(aclrtMapMem(va, kUnit, 0, Physical(kUnit), 0), ACL_SUCCESS);
      },
      23, "mapped memory on device 0, 2097152 bytes(.|\n)*physical memory(.|\n)*reserved addresses");
}

TEST(Vmm, SharingAloneNamesTheDirectory) {
  InProcess({}, [] {
    Start();
    uint64_t shareable = 0;
    EXPECT_EQ(aclrtMemExportToShareableHandle(Physical(kUnit), ACL_MEM_HANDLE_TYPE_NONE, 0, &shareable),
              ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
    EXPECT_NE(strstr(aclGetRecentErrMsg(), "ACLEMU_DIR"), nullptr);
  });
}

class SharedVmm : public testing::TestWithParam<aclrtMemSharedHandleType> {
 protected:
  // Either form of a shareable handle.
  struct Shareable {
    aclrtMemFabricHandle bytes;
  };
  // Exports kUnit bytes of 0x42; 'f' ends all of its own use.
  void Exporter(Link& link, uint64_t flags, int32_t allowed) {
    Start();
    aclrtDrvMemHandle handle = Physical(kUnit);
    uint8_t* va = Reserve(kUnit);
    ASSERT_EQ(aclrtMapMem(va, kUnit, 0, handle, 0), ACL_SUCCESS);
    ASSERT_EQ(Set(va, 0x42, kUnit), ACL_SUCCESS);
    Shareable shareable{};
    ASSERT_EQ(aclrtMemExportToShareableHandleV2(handle, flags, GetParam(), &shareable), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemExportToShareableHandleV2(handle, flags, GetParam(), &shareable), ACL_ERROR_RT_PARAM_INVALID);
    if (allowed != 0) {
      EXPECT_EQ(aclrtMemSetPidToShareableHandleV2(&shareable, GetParam(), &allowed, 1), ACL_SUCCESS);
    }
    aclrtDrvMemHandle own = nullptr;
    EXPECT_EQ(aclrtMemImportFromShareableHandleV2(&shareable, GetParam(), 0, &own), ACL_ERROR_RT_PARAM_INVALID);
    link.Tell(shareable);
    char command;
    while (link.Hear(&command)) {
      EXPECT_EQ(aclrtUnmapMem(va), ACL_SUCCESS);
      EXPECT_EQ(aclrtFreePhysical(handle), ACL_SUCCESS);
      link.Tell(true);
    }
  }
  // Maps what it gets, tells the first byte, and again for each byte it hears.
  void Importer(Link& link, const Shareable& shareable) {
    Start();
    aclrtDrvMemHandle handle = nullptr;
    Shareable copy = shareable;
    ASSERT_EQ(aclrtMemImportFromShareableHandleV2(&copy, GetParam(), 0, &handle), ACL_SUCCESS);
    uint8_t* va = Reserve(kUnit);
    ASSERT_EQ(aclrtMapMem(va, kUnit, 0, handle, 0), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreePhysical(handle), ACL_SUCCESS);
    link.Tell(ByteAt(va));
    char command;
    while (link.Hear(&command)) link.Tell(ByteAt(va));
    EXPECT_EQ(aclrtUnmapMem(va), ACL_SUCCESS);
  }

  SharedDir dir_;
  Knobs knobs_{{"ACLEMU_DIR", dir_.path()}, {"ACLEMU_HBM", "16M"}};
};

TEST_P(SharedVmm, MemoryLivesUntilTheLastProcessUnmaps) {
  Observer observer(knobs_);
  uint64_t start = observer.Free();
  Peer exporter(knobs_, [&](Link& link) { Exporter(link, ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION, 0); });
  auto shareable = exporter.link().Get<Shareable>();
  Peer importer(knobs_, [&](Link& link) { Importer(link, shareable); });
  EXPECT_EQ(importer.link().Get<uint8_t>(), 0x42);
  exporter.link().Tell('f');
  EXPECT_TRUE(exporter.link().Get<bool>());
  EXPECT_EQ(observer.Free(), start - kUnit);
  importer.link().Tell('b');
  EXPECT_EQ(importer.link().Get<uint8_t>(), 0x42);
  exporter.Kill();
  EXPECT_EQ(observer.Free(), start - kUnit);
  importer.link().Tell('b');
  EXPECT_EQ(importer.link().Get<uint8_t>(), 0x42);
  EXPECT_EQ(importer.Join(), 0);
  EXPECT_EQ(observer.Free(), start);
}

TEST_P(SharedVmm, KilledProcessesLeaveNothing) {
  Observer observer(knobs_);
  uint64_t start = observer.Free();
  for (int round = 0; round < 2; ++round) {
    Peer exporter(knobs_, [&](Link& link) { Exporter(link, ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION, 0); });
    auto shareable = exporter.link().Get<Shareable>();
    Peer importer(knobs_, [&](Link& link) { Importer(link, shareable); });
    EXPECT_EQ(importer.link().Get<uint8_t>(), 0x42);
    (round == 0 ? exporter : importer).Kill();
    EXPECT_EQ(observer.Free(), start - kUnit);
    (round == 0 ? importer : exporter).Kill();
    EXPECT_EQ(observer.Free(), start);
  }
}

TEST_P(SharedVmm, OnlyListedProcessesMayImport) {
  for (bool listed : {false, true}) {
    Shareable shareable{};
    Peer importer(knobs_, [&](Link& link) {
      shareable = link.Get<Shareable>();
      Start();
      aclrtDrvMemHandle handle = nullptr;
      EXPECT_EQ(aclrtMemImportFromShareableHandleV2(&shareable, GetParam(), 0, &handle),
                listed ? ACL_SUCCESS : ACL_ERROR_RT_NO_PERMISSION);
    });
    int32_t allowed = listed ? importer.pid() : 1;
    Peer exporter(knobs_, [&](Link& link) { Exporter(link, ACL_RT_VMM_EXPORT_FLAG_DEFAULT, allowed); });
    importer.link().Tell(exporter.link().Get<Shareable>());
    EXPECT_EQ(importer.Join(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, SharedVmm,
                         testing::Values(ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT, ACL_MEM_SHARE_HANDLE_TYPE_FABRIC));

}  // namespace
