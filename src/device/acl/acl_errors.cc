// The ACL runtime's error numbers: names, and which of them mean that a device is gone.
#include <algorithm>
#include <array>

#include "device/acl/acl_library.h"

namespace mooncake::acl {
namespace {

struct Named {
  AclError error;
  std::string_view name;
};

// Names without their ACL_ERROR_ prefix, in order of the numbers. CANN 6 to 9; numbers never change their meaning.
constexpr Named kNames[] = {
    {0, "SUCCESS"},
    {100000, "INVALID_PARAM"},
    {100001, "UNINITIALIZE"},
    {100002, "REPEAT_INITIALIZE"},
    {100003, "INVALID_FILE"},
    {100033, "REPEAT_SUBSCRIBE"},
    {100037, "REPEAT_FINALIZE"},
    {100039, "COMPILING_STUB_MODE (link stubs are on the library path instead of the runtime)"},
    {107000, "RT_PARAM_INVALID"},
    {107001, "RT_INVALID_DEVICEID"},
    {107002, "RT_CONTEXT_NULL (thread has no device)"},
    {107003, "RT_STREAM_CONTEXT (stream of another context)"},
    {107004, "RT_MODEL_CONTEXT"},
    {107005, "RT_STREAM_MODEL"},
    {107006, "RT_EVENT_TIMESTAMP_INVALID"},
    {107007, "RT_EVENT_TIMESTAMP_REVERSAL"},
    {107008, "RT_ADDR_UNALIGNED"},
    {107011, "RT_STREAM_SUBSCRIBE"},
    {107012, "RT_THREAD_SUBSCRIBE"},
    {107015, "RT_STREAM_NO_CB_REG"},
    {107016, "RT_INVALID_MEMORY_TYPE"},
    {107017, "RT_INVALID_HANDLE"},
    {107018, "RT_INVALID_MALLOC_TYPE"},
    {107019, "RT_WAIT_TIMEOUT"},
    {107020, "RT_TASK_TIMEOUT"},
    {107022, "RT_DEVICE_TASK_ABORT"},
    {107023, "RT_STREAM_ABORT"},
    {107027, "RT_STREAM_CAPTURED"},
    {107030, "RT_CAPTURE_MODE_NOT_SUPPORT (the process captures a graph)"},
    {107041, "RT_CAPTURE_MODE_BLOCK_ASYNC (the process captures a graph)"},
    {200000, "BAD_ALLOC"},
    {200001, "API_NOT_SUPPORT"},
    {200006, "FEATURE_UNSUPPORTED"},
    {207000, "RT_FEATURE_NOT_SUPPORT"},
    {207001, "RT_MEMORY_ALLOCATION (device out of memory)"},
    {207002, "RT_MEMORY_FREE"},
    {207004, "RT_NO_DEVICE"},
    {207005, "RT_RESOURCE_ALLOC_FAIL"},
    {207006, "RT_NO_PERMISSION"},
    {207007, "RT_NO_EVENT_RESOURCE"},
    {207008, "RT_NO_STREAM_RESOURCE"},
    {207012, "RT_OVER_LIMIT"},
    {207018, "RT_DEVICE_OOM"},
    {207020, "RT_TIMEOUT"},
    {207021, "RT_LINK_TYPE"},
    {500000, "INTERNAL_ERROR"},
    {500001, "FAILURE"},
    {500003, "RT_FAILURE"},
    {500004, "DRV_FAILURE"},
    {507000, "RT_INTERNAL_ERROR"},
    {507001, "RT_TS_ERROR (copy between host and device failed)"},
    {507002, "RT_STREAM_TASK_FULL"},
    {507004, "RT_STREAM_NOT_COMPLETE"},
    {507006, "RT_EVENT_NOT_COMPLETE"},
    {507007, "RT_CONTEXT_RELEASE_ERROR"},
    {507010, "RT_LOST_HEARTBEAT (device lost)"},
    {507011, "RT_MODEL_EXECUTE"},
    {507012, "RT_REPORT_TIMEOUT"},
    {507013, "RT_SYS_DMA (device copy failed)"},
    {507014, "RT_AICORE_TIMEOUT"},
    {507015, "RT_AICORE_EXCEPTION"},
    {507022, "RT_IPC_ERROR"},
    {507033, "RT_DEV_SETUP_ERROR (device dead or held by another process)"},
    {507034, "RT_VECTOR_CORE_TIMEOUT"},
    {507035, "RT_VECTOR_CORE_EXCEPTION"},
    {507046, "RT_STREAM_SYNC_TIMEOUT"},
    {507047, "RT_EVENT_SYNC_TIMEOUT"},
    {507048, "RT_FFTS_PLUS_TIMEOUT"},
    {507051, "RT_SEND_MSG"},
    {507052, "RT_COPY_DATA (bad host address)"},
    {507053, "RT_DEVICE_MEM_ERROR"},
    {507054, "RT_HBM_MULTI_BIT_ECC_ERROR"},
    {507055, "RT_SUSPECT_DEVICE_MEM_ERROR"},
    {507056, "RT_LINK_ERROR"},
    {507057, "RT_SUSPECT_REMOTE_ERROR"},
    {507899, "RT_DRV_INTERNAL_ERROR"},
    {507900, "RT_AICPU_INTERNAL_ERROR"},
    {507901, "RT_SOCKET_CLOSE"},
    {507910, "RT_HOST_MEMORY_ALREADY_REGISTERED"},
    {507911, "RT_HOST_MEMORY_NOT_REGISTERED"},
};
static_assert(std::ranges::is_sorted(kNames, {}, &Named::error));

}  // namespace

std::string_view ErrorName(AclError error) {
  const auto* found = std::ranges::lower_bound(kNames, error, {}, &Named::error);
  return found != std::end(kNames) && found->error == error ? found->name : "unknown";
}

bool MeansDeviceLost(AclError error) {
  constexpr std::array kLost = {507010, 507033, 507053, 507054, 507900, 507901};
  return std::ranges::find(kLost, error) != kLost.end();
}

void DropErrorText(const FunctionTable& functions) {
  (void)functions.GetRecentErrMsg();  // asking clears it
}

Status MakeStatus(const FunctionTable& functions, ErrorCode code, AclError error, std::string_view what) {
  const char* detail = functions.GetRecentErrMsg();
  std::string text = fmt::format("{}: ACL error {} {}", what, error, ErrorName(error));
  if (detail != nullptr && *detail != '\0') text += fmt::format("; runtime says: {}", detail);
  return Status(code, std::move(text), error);
}

}  // namespace mooncake::acl
