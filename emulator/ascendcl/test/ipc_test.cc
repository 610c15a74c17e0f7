// Memory of aclrtMalloc shared between processes by key.
#include <array>

#include "test/process_peer.h"

namespace {

using Key = std::array<char, 65>;
constexpr size_t kBlock = 2 * kMiB;
constexpr uint64_t kOpen = ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION;

// A process that exports a block of 2 MiB filled with 0x42 and does as it is told.
struct Exporter {
  Exporter(const Knobs& knobs, uint64_t flags, int device = 0)
      : peer(knobs,
             [=](Link& link) {
               Start(device);
               void* block = nullptr;
               Key made{};
               ASSERT_EQ(aclrtMallocAlign32(&block, kBlock, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
               ASSERT_EQ(aclrtMemset(block, kBlock, 0x42, kBlock), ACL_SUCCESS);
               ASSERT_EQ(aclrtIpcMemGetExportKey(block, kBlock, made.data(), made.size(), flags), ACL_SUCCESS);
               link.Tell(made);
               char command;
               while (link.Hear(&command)) {
                 aclError code = ACL_SUCCESS;
                 uint8_t byte = 0;
                 auto pid = command == 'p' ? link.Get<int32_t>() : 0;
                 switch (command) {
                   case 'p':
                     code = aclrtIpcMemSetImportPid(made.data(), &pid, 1);
                     break;
                   case 'c':
                     code = aclrtIpcMemClose(made.data());
                     break;
                   case 'f':
                     code = aclrtFree(block);
                     break;
                   case 'b':
                     EXPECT_EQ(aclrtMemcpy(&byte, 1, block, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
                     code = byte;
                     break;
                   case 'i': {
                     void* own = nullptr;
                     code = aclrtIpcMemImportByKey(&own, made.data(), 0);
                     break;
                   }
                 }
                 link.Tell(code);
               }
             }),
        key(peer.link().Get<Key>()) {}

  aclError Do(char command) {
    peer.link().Tell(command);
    return peer.link().Get<aclError>();
  }
  aclError Allow(int32_t pid) {
    peer.link().Tell('p');
    peer.link().Tell(pid);
    return peer.link().Get<aclError>();
  }
  Peer peer;
  Key key;
};

struct Importer {
  void* far = nullptr;
  void* own = nullptr;
  aclrtStream stream = nullptr;
  Key key;

  explicit Importer(const Key& with, int device = 0) : key(with) {
    Start(device);
    EXPECT_EQ(aclrtMallocAlign32(&own, kBlock, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
    EXPECT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  }
  aclError Open(uint64_t flags = 0) { return aclrtIpcMemImportByKey(&far, key.data(), flags); }
  aclError Copy(void* dst, void* src, aclrtMemcpyKind kind = ACL_MEMCPY_DEVICE_TO_DEVICE) {
    aclError code = aclrtMemcpyAsync(dst, kBlock, src, kBlock, kind, stream);
    return code != ACL_SUCCESS ? code : aclrtSynchronizeStream(stream);
  }
  int OwnByte(size_t at) {
    uint8_t byte = 0;
    EXPECT_EQ(aclrtMemcpy(&byte, 1, static_cast<uint8_t*>(own) + at, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    return byte;
  }
};

class Ipc : public testing::Test {
 protected:
  SharedDir dir_;
  Knobs knobs_{{"ACLEMU_DIR", dir_.path()}, {"ACLEMU_HBM", "32M"}};
};

TEST_F(Ipc, BothProcessesSeeTheSameBytes) {
  Exporter exporter(knobs_, kOpen);
  Peer importer(knobs_, [&](Link& link) {
    Importer me(exporter.key);
    ASSERT_EQ(me.Open(), ACL_SUCCESS);
    ASSERT_EQ(me.Copy(me.own, me.far), ACL_SUCCESS);
    EXPECT_EQ(me.OwnByte(0), 0x42);
    EXPECT_EQ(me.OwnByte(kBlock - 1), 0x42);
    ASSERT_EQ(aclrtMemset(me.own, kBlock, 0x17, kBlock), ACL_SUCCESS);
    ASSERT_EQ(me.Copy(me.far, me.own), ACL_SUCCESS);
    link.Tell(true);
    link.Get<char>();
    EXPECT_EQ(aclrtIpcMemClose(me.key.data()), ACL_SUCCESS);
    EXPECT_NE(me.Copy(me.own, me.far), ACL_SUCCESS);
    // It may come back as long as the key is open.
    void* before = me.far;
    EXPECT_EQ(me.Open(), ACL_SUCCESS);
    EXPECT_NE(me.far, before);
    EXPECT_EQ(aclrtIpcMemClose(me.key.data()), ACL_SUCCESS);
    EXPECT_EQ(GetStats().violations, 1u);
  });
  EXPECT_TRUE(importer.link().Get<bool>());
  EXPECT_EQ(exporter.Do('b'), 0x17);
  importer.link().Tell('g');
  EXPECT_EQ(importer.Join(), 0);
  EXPECT_EQ(exporter.Do('c'), ACL_SUCCESS);
  EXPECT_EQ(exporter.Do('f'), ACL_SUCCESS);
  EXPECT_EQ(exporter.peer.Join(), 0);
}

TEST_F(Ipc, OnlyListedProcessesMayImport) {
  Exporter exporter(knobs_, ACL_RT_IPC_MEM_EXPORT_FLAG_DEFAULT);
  Peer importer(knobs_, [&](Link& link) {
    Importer me(exporter.key);
    EXPECT_EQ(me.Open(), ACL_ERROR_RT_NO_PERMISSION);
    int32_t pid = 0;
    EXPECT_EQ(aclrtDeviceGetBareTgid(&pid), ACL_SUCCESS);
    link.Tell(pid);
    link.Get<char>();
    EXPECT_EQ(me.Open(), ACL_SUCCESS);
  });
  EXPECT_EQ(exporter.Allow(importer.link().Get<int32_t>()), ACL_SUCCESS);
  importer.link().Tell('g');
  EXPECT_EQ(importer.Join(), 0);
}

TEST_F(Ipc, V2ImportedMemoryServesAsynchronousDeviceCopiesOnly) {
  Exporter exporter(knobs_, kOpen);
  Peer importer(knobs_, [&](Link&) {
    Importer me(exporter.key);
    void* pinned = nullptr;
    ASSERT_EQ(aclrtMallocHost(&pinned, kBlock), ACL_SUCCESS);
    ASSERT_EQ(me.Open(), ACL_SUCCESS);
    EXPECT_EQ(me.Open(), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(me.Copy(pinned, me.far, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(me.Copy(me.far, pinned, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(me.Copy(me.own, me.far, ACL_MEMCPY_DEFAULT), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemcpy(me.own, kBlock, me.far, kBlock, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemset(me.far, kBlock, 0, kBlock), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtFree(me.far), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(GetStats().violations, 7u);
    EXPECT_EQ(me.Copy(me.own, me.far), ACL_SUCCESS);
  });
  EXPECT_EQ(importer.Join(), 0);
}

TEST_F(Ipc, V2AlsoWherePageableCopiesAreServed) {
  Exporter exporter(knobs_, kOpen);
  Knobs knobs = knobs_;
  knobs.emplace_back("ACLEMU_PAGEABLE", "sync");
  Peer importer(knobs, [&](Link&) {
    Importer me(exporter.key);
    ASSERT_EQ(me.Open(), ACL_SUCCESS);
    std::vector<uint8_t> plain(kBlock);
    EXPECT_EQ(me.Copy(me.far, plain.data(), ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(me.Copy(me.own, plain.data(), ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  });
  EXPECT_EQ(importer.Join(), 0);
}

TEST_F(Ipc, V2ImportersCloseBeforeTheOwnerClosesAndFrees) {
  Exporter exporter(knobs_, kOpen);
  EXPECT_EQ(exporter.Do('i'), ACL_ERROR_RT_PARAM_INVALID);  // the own key
  Peer importer(knobs_, [&](Link& link) {
    Importer me(exporter.key);
    EXPECT_EQ(me.Open(), ACL_SUCCESS);
    link.Tell(true);
    link.Get<char>();
    EXPECT_EQ(aclrtIpcMemClose(me.key.data()), ACL_SUCCESS);
    EXPECT_EQ(aclrtIpcMemClose(me.key.data()), ACL_ERROR_RT_PARAM_INVALID);
    link.Tell(true);
    link.Get<char>();
  });
  EXPECT_TRUE(importer.link().Get<bool>());
  EXPECT_EQ(exporter.Do('f'), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(exporter.Do('c'), ACL_ERROR_RT_PARAM_INVALID);
  importer.link().Tell('g');
  EXPECT_TRUE(importer.link().Get<bool>());
  EXPECT_EQ(exporter.Do('f'), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(exporter.Do('c'), ACL_SUCCESS);
  EXPECT_EQ(exporter.Do('f'), ACL_SUCCESS);
}

TEST_F(Ipc, LenientModeLeavesTheMemoryToItsImporter) {
  Knobs knobs = knobs_;
  knobs.emplace_back("ACLEMU_VIOLATION", "log");
  Observer observer(knobs);
  uint64_t start = observer.Free();
  Exporter exporter(knobs, kOpen);
  Peer importer(knobs, [&](Link& link) {
    Importer me(exporter.key);
    EXPECT_EQ(me.Open(), ACL_SUCCESS);
    link.Tell(true);
    link.Get<char>();
    void* other = nullptr;  // the memory is not given out again
    while (aclrtMallocAlign32(&other, kBlock, ACL_MEM_MALLOC_HUGE_ONLY) == ACL_SUCCESS) {
      EXPECT_EQ(aclrtMemset(other, kBlock, 0x99, kBlock), ACL_SUCCESS);
    }
    EXPECT_EQ(aclrtIpcMemClose(me.key.data()), ACL_SUCCESS);
    EXPECT_EQ(aclrtMallocAlign32(&other, kBlock, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
  });
  EXPECT_TRUE(importer.link().Get<bool>());
  EXPECT_EQ(exporter.Do('f'), ACL_SUCCESS);
  EXPECT_EQ(observer.Free(), start - 2 * kBlock);
  importer.link().Tell('g');
  EXPECT_EQ(importer.Join(), 0);
  exporter.peer.Kill();
  EXPECT_EQ(observer.Free(), start);
}

TEST_F(Ipc, AKilledImporterHoldsNothing) {
  Observer observer(knobs_);
  uint64_t start = observer.Free();
  Exporter exporter(knobs_, kOpen);
  Peer importer(knobs_, [&](Link& link) {
    Importer me(exporter.key);
    link.Tell(me.Open());
    link.Get<char>();
  });
  EXPECT_EQ(importer.link().Get<aclError>(), ACL_SUCCESS);
  EXPECT_EQ(exporter.Do('c'), ACL_ERROR_RT_PARAM_INVALID);
  importer.Kill();
  EXPECT_EQ(exporter.Do('c'), ACL_SUCCESS);
  EXPECT_EQ(exporter.Do('f'), ACL_SUCCESS);
  EXPECT_EQ(observer.Free(), start);
}

TEST_F(Ipc, AKilledExporterLeavesItsImporterAnErrorAndNoMemory) {
  Observer observer(knobs_);
  uint64_t start = observer.Free();
  Exporter exporter(knobs_, kOpen);
  Peer importer(knobs_, [&](Link& link) {
    Importer me(exporter.key);
    link.Tell(me.Open());
    link.Get<char>();
    EXPECT_EQ(me.Copy(me.own, me.far), ACL_ERROR_RT_IPC_ERROR);
    EXPECT_EQ(aclrtIpcMemClose(me.key.data()), ACL_SUCCESS);
    EXPECT_EQ(me.Open(), ACL_ERROR_RT_PARAM_INVALID);
    link.Tell(true);
    link.Get<char>();
  });
  EXPECT_EQ(importer.link().Get<aclError>(), ACL_SUCCESS);
  exporter.peer.Kill();
  EXPECT_EQ(observer.Free(), start - 2 * kBlock);  // still held
  importer.link().Tell('g');
  EXPECT_TRUE(importer.link().Get<bool>());
  EXPECT_EQ(observer.Free(), start - kBlock);
  importer.Kill();
  EXPECT_EQ(observer.Free(), start);
}

TEST_F(Ipc, BothKilledLeaveNothing) {
  Observer observer(knobs_);
  uint64_t start = observer.Free();
  for (int round = 0; round < 4; ++round) {
    Exporter exporter(knobs_, kOpen);
    Peer importer(knobs_, [&](Link& link) {
      Importer me(exporter.key);
      link.Tell(me.Open());
      link.Get<char>();
    });
    EXPECT_EQ(importer.link().Get<aclError>(), ACL_SUCCESS);
    Peer& first = round % 2 == 0 ? exporter.peer : importer;
    Peer& second = round % 2 == 0 ? importer : exporter.peer;
    first.Kill();
    if (round < 2) observer.Free();
    second.Kill();
    EXPECT_EQ(observer.Free(), start);
  }
}

TEST_F(Ipc, PeerAccessComesWithTheFlag) {
  Exporter exporter(knobs_, kOpen, 1);
  Peer importer(knobs_, [&](Link&) {
    Importer me(exporter.key, 0);
    ASSERT_EQ(me.Open(), ACL_SUCCESS);
    EXPECT_EQ(me.Copy(me.own, me.far), ACL_ERROR_RT_PARAM_INVALID);  // C11
    EXPECT_EQ(aclrtIpcMemClose(me.key.data()), ACL_SUCCESS);
    ASSERT_EQ(me.Open(ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS), ACL_SUCCESS);
    EXPECT_EQ(me.Copy(me.own, me.far), ACL_SUCCESS);
    EXPECT_EQ(me.OwnByte(7), 0x42);
    aclrtPtrAttributes attributes{};
    EXPECT_EQ(aclrtPointerGetAttributes(me.far, &attributes), ACL_SUCCESS);
    EXPECT_EQ(attributes.location.id, 1u);
    EXPECT_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_DEVICE);
  });
  EXPECT_EQ(importer.Join(), 0);
}

TEST_F(Ipc, ADeviceThatIsNotVisibleIsNamed) {
  Exporter exporter(knobs_, kOpen, 1);
  Knobs knobs = knobs_;
  knobs.emplace_back("ASCEND_RT_VISIBLE_DEVICES", "0");
  Peer importer(knobs, [&](Link&) {
    Importer me(exporter.key, 0);
    EXPECT_EQ(me.Open(), ACL_ERROR_RT_INVALID_DEVICEID);
  });
  EXPECT_EQ(importer.Join(), 0);
}

TEST_F(Ipc, ExportTakesWholePagesOfOneBlock) {
  Peer peer(knobs_, [&](Link&) {
    Start();
    Key key{};
    void *huge = nullptr, *small = nullptr;
    ASSERT_EQ(aclrtMalloc(&huge, 4 * kMiB, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
    ASSERT_EQ(aclrtMalloc(&small, 8192, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    auto get = [&](void* ptr, size_t at, size_t size, size_t len = 65, uint64_t flags = 0) {
      return aclrtIpcMemGetExportKey(static_cast<uint8_t*>(ptr) + at, size, key.data(), len, flags);
    };
    EXPECT_EQ(get(huge, 0, kMiB), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(get(huge, kMiB, 2 * kMiB), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(get(huge, 0, 8 * kMiB), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(get(huge, 0, 2 * kMiB, 64), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(get(huge, 0, 2 * kMiB, 65, 2), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(get(small, 0, 1000), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtIpcMemGetExportKey(nullptr, 4096, key.data(), 65, 0), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(get(small, 4096, 4096), ACL_SUCCESS);
    EXPECT_EQ(get(small, 0, 4096), ACL_SUCCESS);
    EXPECT_EQ(get(small, 4096, 4096), ACL_ERROR_RT_PARAM_INVALID);  // overlaps
    EXPECT_EQ(get(huge, 2 * kMiB, 4 * kMiB), ACL_SUCCESS);          // with the last page, which is not full
    EXPECT_EQ(strlen(key.data()), 64u);
    EXPECT_EQ(aclrtIpcMemSetAttr(key.data(), ACL_RT_IPC_MEM_ATTR_ACCESS_LINK, 1), ACL_SUCCESS);
    EXPECT_EQ(aclrtIpcMemSetAttr(key.data(), ACL_RT_IPC_MEM_ATTR_ACCESS_LINK, 7), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtIpcMemSetAttr("key", ACL_RT_IPC_MEM_ATTR_ACCESS_LINK, 1), ACL_ERROR_RT_PARAM_INVALID);
    // The end of the device ends its keys.
    EXPECT_EQ(aclrtResetDeviceForce(0), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(FreeBytes(), 32 * kMiB);
    EXPECT_EQ(aclrtIpcMemClose(key.data()), ACL_ERROR_RT_PARAM_INVALID);
  });
  EXPECT_EQ(peer.Join(), 0);
}

TEST(IpcAlone, WithoutADirectoryTheErrorNamesIt) {
  InProcess({}, [] {
    Session acl;
    Key key{};
    EXPECT_EQ(aclrtIpcMemGetExportKey(acl.device, kBytes, key.data(), 65, 0), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
    const char* message = aclGetRecentErrMsg();
    ASSERT_NE(message, nullptr);
    EXPECT_NE(strstr(message, "ACLEMU_DIR"), nullptr) << message;
  });
}

TEST_F(Ipc, V2CloseWhileATaskUsesTheMemory) {
  Exporter exporter(knobs_, kOpen);
  Knobs knobs = knobs_;
  knobs.emplace_back("ACLEMU_SCHED", "lazy");
  Peer importer(knobs, [&](Link&) {
    Importer me(exporter.key);
    ASSERT_EQ(me.Open(), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(me.own, kBlock, me.far, kBlock, ACL_MEMCPY_DEVICE_TO_DEVICE, me.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtIpcMemClose(me.key.data()), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtSynchronizeStream(me.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtIpcMemClose(me.key.data()), ACL_SUCCESS);
  });
  EXPECT_EQ(importer.Join(), 0);
}

}  // namespace
