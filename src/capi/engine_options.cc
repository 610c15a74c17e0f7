// Tables of protocol names, metadata types and numbers.
#include "capi/engine_options.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "common/json_text.h"
#include "common/log.h"
#include "transfer_engine/protocol_names.h"

namespace mooncake {
namespace {

constexpr std::string_view kPeerToPeer = "P2PHANDSHAKE";

// Names of hardware that programs ask for and nothing here drives; their host memory goes over what there is.
constexpr std::array<std::string_view, 15> kOtherHardware = {
    "barex", "cxi",    "cxl",          "efa",    "hccl",         "hip", "maca",   "musa",
    "nccl",  "nvlink", "nvlink_intra", "nvmeof", "sunrise_link", "ub",  "ubshmem"};

Result<std::vector<std::string>> ProtocolsFor(const std::string& name, bool force_tcp) {
  if (force_tcp || std::find(kOtherHardware.begin(), kOtherHardware.end(), name) == kOtherHardware.end())
    return ProtocolsOf(name, force_tcp);
  log::Warn("protocol {} is not part of this build: rdma and tcp carry its transfers", name);
  return ProtocolsOf("rdma", force_tcp);
}

Result<std::string> MetadataFor(const EngineArguments& arguments) {
  const std::string& server = arguments.metadata;
  if (server == kPeerToPeer || arguments.metadata_type.empty()) return server;
  if (arguments.metadata_type == kPeerToPeer) return std::string(kPeerToPeer);
  constexpr std::array<std::string_view, 4> kTypes = {"etcd", "redis", "http", "https"};
  if (std::find(kTypes.begin(), kTypes.end(), arguments.metadata_type) == kTypes.end())
    return Error(ErrorCode::INVALID_PARAMS, "unknown metadata type {}: write etcd, redis or http",
                 QuoteForMessage(arguments.metadata_type));
  const size_t scheme = server.find("://");
  if (scheme == std::string::npos) return arguments.metadata_type + "://" + server;
  const bool same = server.substr(0, scheme) == arguments.metadata_type ||
                    (arguments.metadata_type == "http" && server.starts_with("https://"));
  if (!same)
    return Error(ErrorCode::INVALID_PARAMS, "metadata server {} is not of type {}", QuoteForMessage(server),
                 arguments.metadata_type);
  return server;
}

}  // namespace

Result<TransferEngineOptions> EngineOptions(const EngineArguments& arguments) {
  return EngineOptions(arguments, MC_TRY(TransferEngineOptionsFromEnvironment()));
}

Result<TransferEngineOptions> EngineOptions(const EngineArguments& arguments, TransferEngineOptions options) {
  options.local_name = arguments.local_name;
  options.metadata = MC_TRY(MetadataFor(arguments));
  options.protocols = MC_TRY(ProtocolsFor(arguments.protocol, options.force_tcp));
  // A name of an RDMA device says nothing about tcp.
  const bool rdma = options.protocols.front() == "rdma" && !options.force_tcp;
  if (rdma && !arguments.devices.empty()) options.device_filter = DeviceList(arguments.devices);
  return options;
}

Result<RegionOptions> RegionOptionsOf(std::string_view location, RegionAccess access) {
  RegionOptions options{.location = std::string(location.empty() ? "*" : location), .access = access};
  if (options.location == "*" || location == "cpu") return options;
  const bool npu = location.starts_with("npu:");
  int32_t number = -1;
  if (npu || location.starts_with("cpu:")) {
    const char* const end = location.data() + location.size();
    const auto [stop, error] = std::from_chars(location.data() + 4, end, number);
    if (error != std::errc() || stop != end) number = -1;
  }
  if (number < 0)
    return Error(ErrorCode::INVALID_PARAMS, "location {}: write *, cpu:N or npu:N", QuoteForMessage(location));
  if (npu) options.device_id = number;
  return options;
}

int NegativeNumber(const Status& status) {
  switch (status.code()) {
    case ErrorCode::TOO_MANY_REQUESTS:
      return -2;
    case ErrorCode::ADDRESS_NOT_REGISTERED:
      return -3;
    case ErrorCode::BATCH_BUSY:
      return -4;
    case ErrorCode::DEVICE_NOT_FOUND:
      return -6;
    case ErrorCode::ADDRESS_OVERLAPPED:
      return -7;
    case ErrorCode::METADATA_ERROR:
    case ErrorCode::SEGMENT_NOT_FOUND:
      return -200;
    default:
      return -1;
  }
}

int StatusNumber(const Status& status) {
  switch (status.code()) {
    case ErrorCode::OK:
      return 0;
    case ErrorCode::INVALID_PARAMS:
      return 1;
    case ErrorCode::NOT_SUPPORTED_TRANSPORT:
      return 8;
    case ErrorCode::STALE_SEGMENT:
      return 200;
    default: {
      const int negative = NegativeNumber(status);
      return negative == -1 ? 999 : -negative;
    }
  }
}

}  // namespace mooncake
