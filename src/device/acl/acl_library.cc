// dlopen and dlsym of the ACL runtime, and its error names.
#include "device/acl/acl_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "common/env.h"

namespace mooncake::acl {
namespace {

template <typename Function>
bool Resolve(void* library, const char* symbol, Function& slot) {
  slot = reinterpret_cast<Function>(dlsym(library, symbol));
  return slot != nullptr;
}

Result<FunctionTable> FillTable(void* library, const std::string& path) {
  FunctionTable table;
  std::string missing;
#define MC_ACL_RESOLVE(member, symbol, result, parameters) \
  if (!Resolve(library, #symbol, table.member)) missing += missing.empty() ? #symbol : ", " #symbol;
  MC_ACL_REQUIRED(MC_ACL_RESOLVE)
#undef MC_ACL_RESOLVE
#define MC_ACL_RESOLVE(member, symbol, result, parameters) (void)Resolve(library, #symbol, table.member);
  MC_ACL_OPTIONAL(MC_ACL_RESOLVE)
#undef MC_ACL_RESOLVE
  if (!missing.empty()) {
    return mooncake::Error(ErrorCode::INTERNAL_ERROR, "{} lacks {}: not a usable ACL runtime", path, missing);
  }
  return table;
}

std::vector<std::string> Candidates() {
  if (const auto configured = env::Get(env::kAclLibrary)) return {*configured};
  return {"libascendcl.so", "libacl_rt.so"};
}

}  // namespace

bool IsLibraryLoaded() {
  const auto loaded = [](const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    return library != nullptr && dlclose(library) == 0;
  };
  return std::ranges::any_of(Candidates(), loaded);
}

Result<Library> LoadLibrary() {
  std::string tried;
  for (const std::string& path : Candidates()) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      tried += fmt::format("{}{}", tried.empty() ? "" : "; ", dlerror());
      continue;
    }
    return Library{MC_TRY(FillTable(library, path)), path};
  }
  return mooncake::Error(ErrorCode::INTERNAL_ERROR,
                         "no ACL runtime could be loaded ({}). Install CANN and source its set_env.sh, point {} at the "
                         "library, or use the emulator (scripts/with_npu_emulator.sh)",
                         tried, env::kAclLibrary.name);
}

std::string_view ErrorName(AclError error) {
  switch (error) {
    case 0:
      return "SUCCESS";
    case 100000:
      return "INVALID_PARAM";
    case 100001:
      return "UNINITIALIZE";
    case 100002:
      return "REPEAT_INITIALIZE";
    case 100003:
      return "INVALID_FILE";
    case 100037:
      return "REPEAT_FINALIZE";
    case 100039:
      return "COMPILING_STUB_MODE (link stubs are on the library path instead of the runtime)";
    case 107000:
      return "RT_PARAM_INVALID";
    case 107001:
      return "RT_INVALID_DEVICEID";
    case 107002:
      return "RT_CONTEXT_NULL (thread has no device)";
    case 107003:
      return "RT_STREAM_CONTEXT";
    case 107008:
      return "ADDR_UNALIGNED";
    case 107017:
      return "INVALID_HANDLE";
    case 107019:
      return "WAIT_TIMEOUT";
    case 107020:
      return "TASK_TIMEOUT";
    case 107030:
      return "CAPTURE_MODE_NOT_SUPPORT (the process captures a graph)";
    case 200000:
      return "BAD_ALLOC";
    case 200006:
      return "FEATURE_UNSUPPORTED";
    case 207000:
      return "FEATURE_NOT_SUPPORT";
    case 207001:
      return "MEMORY_ALLOCATION (device out of memory)";
    case 207004:
      return "NO_DEVICE";
    case 207005:
      return "RESOURCE_ALLOC_FAIL";
    case 207006:
      return "NO_PERMISSION";
    case 207018:
      return "DEVICE_OOM";
    case 507000:
      return "INTERNAL_ERROR";
    case 507001:
      return "TS_ERROR (copy between host and device failed)";
    case 507010:
      return "LOST_HEARTBEAT (device lost)";
    case 507013:
      return "SYS_DMA (device copy failed)";
    case 507033:
      return "DEV_SETUP_ERROR (device dead or held by another process)";
    case 507046:
      return "STREAM_SYNC_TIMEOUT";
    case 507047:
      return "EVENT_SYNC_TIMEOUT";
    case 507052:
      return "COPY_DATA (bad host address)";
    case 507053:
      return "DEVICE_MEM_ERROR";
    case 507054:
      return "HBM_MULTI_BIT_ECC";
    case 507899:
      return "DRV_INTERNAL_ERROR";
    case 507910:
      return "HOST_MEMORY_ALREADY_REGISTERED";
    case 507911:
      return "HOST_MEMORY_NOT_REGISTERED";
    default:
      return "unknown";
  }
}

Status MakeStatus(const FunctionTable& functions, ErrorCode code, AclError error, std::string_view what) {
  const char* detail = functions.GetRecentErrMsg();
  std::string text = fmt::format("{}: ACL error {} {}", what, error, ErrorName(error));
  if (detail != nullptr && *detail != '\0') text += fmt::format("; runtime says: {}", detail);
  return Status(code, std::move(text), error);
}

}  // namespace mooncake::acl
