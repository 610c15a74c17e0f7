// Versions, device properties and ids.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "rules/call.h"

namespace aclemu {
namespace {

struct Version {
  int major, minor, patch;
};

Version PackageVersion() {
  Version v{};
  if (sscanf(Settings().release->version, "%d.%d.%d", &v.major, &v.minor, &v.patch) != 3)
    Broken("a release has no version");
  return v;
}

// Packages are directories of an installation; the emulator has the runtime only, under its names.
bool IsKnownPackage(const char* name) {
  for (const char* known : {"runtime", "CANN", "cann", "toolkit"}) {
    if (strcmp(name, known) == 0) return true;
  }
  return false;
}

void Print(char* out, size_t bytes, int number) {
  snprintf(out, bytes, "%d", number);
}

aclError DeviceInfo(uint32_t id, aclrtDevAttr attr, int64_t* value) {
  switch (static_cast<uint32_t>(attr)) {
    case ACL_DEV_ATTR_AICORE_CORE_NUM:
      *value = Settings().soc->ai_cores;
      return ACL_SUCCESS;
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE:
      *value = static_cast<int64_t>(Settings().hbm_bytes);
      return ACL_SUCCESS;
    default:
      return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "attribute %d of device %u", static_cast<int>(attr), id);
  }
}

// Emulated devices are alike and all visible, so that an id is the same in every numbering.
aclError SameId(Runtime& runtime, int32_t id, int32_t* out) {
  if (out == nullptr) return NullPointer("device id");
  ACLEMU_TRY(NeedDevice(runtime, id));
  *out = id;
  return ACL_SUCCESS;
}

}  // namespace

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetVersion(int32_t* major, int32_t* minor, int32_t* patch) {
  return Call(Api::aclrtGetVersion, Out(major), [&](Runtime&) {
    if (major == nullptr || minor == nullptr || patch == nullptr) return NullPointer("a version part");
    *major = 1;
    *minor = Settings().release->api_minor;
    *patch = 0;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion* version) {
  return Call(Api::aclsysGetCANNVersion, NeedsInit::kNo, Out(version), [&](Runtime&) {
    if (version == nullptr) return NullPointer("version");
    if (static_cast<uint32_t>(name) > ACL_PKG_NAME_DRIVER) return Fail(ACL_ERROR_INVALID_PARAM, "package %d", name);
    if (name > ACL_PKG_NAME_RUNTIME) return Fail(ACL_ERROR_INVALID_FILE, "package %d is not installed", name);
    Version v = PackageVersion();
    aclCANNPackageVersion found{};
    snprintf(found.version, sizeof(found.version), "%s", Settings().release->version);
    Print(found.majorVersion, sizeof(found.majorVersion), v.major);
    Print(found.minorVersion, sizeof(found.minorVersion), v.minor);
    Print(found.releaseVersion, sizeof(found.releaseVersion), v.patch);
    Print(found.patchVersion, sizeof(found.patchVersion), 0);
    *version = found;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclsysGetVersionStr(char* package, char* text) {
  return Call(Api::aclsysGetVersionStr, NeedsInit::kNo, [&](Runtime&) {
    if (package == nullptr || text == nullptr) return NullPointer("pkgName or versionStr");
    if (!IsKnownPackage(package)) return Fail(ACL_ERROR_INVALID_FILE, "package %s is not installed", package);
    strcpy(text, Settings().release->version);
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclsysGetVersionNum(char* package, int32_t* number) {
  return Call(Api::aclsysGetVersionNum, NeedsInit::kNo, Out(number), [&](Runtime&) {
    if (package == nullptr || number == nullptr) return NullPointer("pkgName or versionNum");
    if (!IsKnownPackage(package)) return Fail(ACL_ERROR_INVALID_FILE, "package %s is not installed", package);
    Version v = PackageVersion();
    *number = v.major * 10'000'000 + v.minor * 100'000 + v.patch * 1000;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(const char*) aclemu_impl_aclrtGetSocName(void) {
  const char* name = nullptr;
  Call(Api::aclrtGetSocName, [&](Runtime&) {
    if (Runtime::Current() != nullptr) name = Settings().soc->soc_name;
    return ACL_SUCCESS;
  });
  return name;
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetRunMode(aclrtRunMode* mode) {
  return Call(Api::aclrtGetRunMode, Out(mode), [&](Runtime&) {
    if (mode == nullptr) return NullPointer("mode");
    *mode = ACL_HOST;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetDeviceInfo(uint32_t id, aclrtDevAttr attr, int64_t* value) {
  return Call(Api::aclrtGetDeviceInfo, Out(value), [&](Runtime& runtime) {
    if (value == nullptr) return NullPointer("value");
    ACLEMU_TRY(NeedDevice(runtime, id));
    return DeviceInfo(id, attr, value);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetDevicesTopo(uint32_t id, uint32_t other, uint64_t* links) {
  return Call(Api::aclrtGetDevicesTopo, Out(links), [&](Runtime& runtime) {
    if (links == nullptr) return NullPointer("value");
    ACLEMU_TRY(NeedDevice(runtime, id));
    ACLEMU_TRY(NeedDevice(runtime, other));
    if (id == other) return Fail(ACL_ERROR_INVALID_PARAM, "device %u twice", id);
    // The two dies of one package are joined inside it.
    bool one_package = strcmp(Settings().soc->name, "a3") == 0 && id / 2 == other / 2;
    *links = one_package ? ACL_RT_DEVS_TOPOLOGY_SIO : ACL_RT_DEVS_TOPOLOGY_HCCS;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetPhyDevIdByLogicDevId(int32_t id, int32_t* out) {
  return Call(Api::aclrtGetPhyDevIdByLogicDevId, Out(out), [&](Runtime& runtime) { return SameId(runtime, id, out); });
}
ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetLogicDevIdByPhyDevId(int32_t id, int32_t* out) {
  return Call(Api::aclrtGetLogicDevIdByPhyDevId, Out(out), [&](Runtime& runtime) { return SameId(runtime, id, out); });
}
ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetLogicDevIdByUserDevId(int32_t id, int32_t* out) {
  return Call(Api::aclrtGetLogicDevIdByUserDevId, Out(out), [&](Runtime& runtime) { return SameId(runtime, id, out); });
}
ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetUserDevIdByLogicDevId(int32_t id, int32_t* out) {
  return Call(Api::aclrtGetUserDevIdByLogicDevId, Out(out), [&](Runtime& runtime) { return SameId(runtime, id, out); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtDeviceGetBareTgid(int32_t* pid) {
  return Call(Api::aclrtDeviceGetBareTgid, Out(pid), [&](Runtime&) {
    if (pid == nullptr) return NullPointer("pid");
    *pid = getpid();
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetPrimaryCtxState(int32_t id, uint32_t* flags, int32_t* active) {
  return Call(Api::aclrtGetPrimaryCtxState, Out(active), [&](Runtime& runtime) {
    if (active == nullptr) return NullPointer("active");
    ACLEMU_TRY(NeedDevice(runtime, id));
    Device& device = runtime.device(id);
    std::lock_guard lock(device.mu);
    if (flags != nullptr) *flags = 0;
    *active = device.primary != nullptr ? 1 : 0;
    return ACL_SUCCESS;
  });
}

}  // namespace aclemu
