// dlopen and dlsym of the ACL runtime.
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
  // An empty name would be the program itself.
  if (const auto configured = env::Get(env::kAclLibrary); configured && !configured->empty()) return {*configured};
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

}  // namespace mooncake::acl
