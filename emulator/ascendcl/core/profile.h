// What differs between the releases of CANN and between the chips, as data.
#pragma once
#include <cstdint>
#include <string>

#include "acl/acl.h"

namespace aclemu {

// Which asynchronous copies need both ends aligned to 64 bytes.
enum class Aligned { kNone, kDeviceToDevice, kAll };

// One release, or "strictest": every rule of every release, and every function present.
struct ReleaseTraits {
  const char* name;     // value of ACLEMU_PROFILE
  const char* version;  // of the package
  int number;           // functions that api_list.inc gives a later one are absent
  int32_t api_minor;    // aclrtGetVersion answers 1.api_minor
  Aligned aligned;
  bool pageable_sync;         // asynchronous copies of pageable memory become synchronous; else undefined, thus refused
  bool corrects_kind;         // an asynchronous copy between known places ignores its kind
  bool empty_copy_succeeds;   // count 0
  bool counts_init;           // a repeated aclInit takes a reference
  aclError capture_pageable;  // answer to an asynchronous copy of pageable memory during a capture
};

struct SocTraits {
  const char* name;      // value of ACLEMU_SOC
  const char* soc_name;  // aclrtGetSocName
  uint32_t malloc_padding;
  uint64_t max_streams;  // per device
  size_t stream_depth;   // tasks that fit a stream; one more makes the caller wait
  bool has_hbm;          // else memory is DDR
  bool registers_host;   // aclrtHostRegister is supported
  int64_t ai_cores;
};

// Null if there is none of that name.
const ReleaseTraits* FindRelease(const std::string& name);
const SocTraits* FindSoc(const std::string& name);
std::string ReleaseNames();
std::string SocNames();

// The release the loaded facade libraries were made for. Ends the process when two differ.
const ReleaseTraits& FacadeRelease();

}  // namespace aclemu
