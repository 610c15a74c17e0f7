// Which calls a lost device and injected faults reach.
#include <algorithm>

#include "rules/call.h"

namespace aclemu {
namespace {

// What says nothing to the device, or must work to clean up after it.
constexpr Api kWorkOnLostDevice[] = {
    Api::aclInit,
    Api::aclFinalize,
    Api::aclFinalizeReference,
    Api::aclrtGetVersion,
    Api::aclrtGetSocName,
    Api::aclrtGetRunMode,
    Api::aclrtGetDeviceCount,
    Api::aclrtGetDevice,
    Api::aclrtSetDevice,  // answers itself
    Api::aclrtGetCurrentContext,
    Api::aclrtSetCurrentContext,
    Api::aclrtQueryDeviceStatus,
    Api::aclrtDeviceCanAccessPeer,
    Api::aclrtFree,
    Api::aclrtFreePhysical,
    Api::aclrtIpcMemClose,
    Api::aclrtReleaseMemAddress,
    Api::aclrtUnmapMem,
    Api::aclrtUnSubscribeReport,
    Api::aclsysGetCANNVersion,
    Api::aclsysGetVersionNum,
    Api::aclsysGetVersionStr,
    Api::aclrtFreeHost,
    Api::aclrtHostUnregister,
};

}  // namespace

int DeviceOf(Runtime& runtime, const CallArgs& args) {
  if (args.device >= 0) return runtime.ValidDevice(args.device) ? args.device : -1;
  return Runtime::Current() == nullptr ? -1 : Runtime::Current()->device;
}

aclError CheckHealth(Runtime& runtime, Api api, const CallArgs& args) {
  int device = DeviceOf(runtime, args);
  if (device >= 0 && runtime.LostCode(device) != ACL_SUCCESS && std::ranges::count(kWorkOnLostDevice, api) == 0) {
    runtime.NoticeLost(device);
    return Fail(runtime.LostCode(device), "device %d is lost", device);
  }
  FaultPlan& plan = FaultPlan::Get();
  if (!plan.armed()) return ACL_SUCCESS;
  int64_t number = -1;
  if (args.has_stream) {
    auto stream = args.stream == nullptr ? nullptr : runtime.streams.Find(args.stream);
    if (stream == nullptr) stream = runtime.default_streams.Find(args.stream);
    number = args.stream == nullptr ? 0 : stream != nullptr ? stream->number : -1;
  }
  FaultAction fault = plan.Check({FaultPoint::Moment::kCall, api, -1, device, args.bytes, number});
  return fault.code == ACL_SUCCESS ? ACL_SUCCESS : Fail(fault.code, "injected fault");
}

}  // namespace aclemu
