// Parsing master addresses and asking etcd.
#include "client/master_locator.h"

namespace mooncake {
namespace {

constexpr uint16_t kMasterPort = 50051;
constexpr std::string_view kEtcdScheme = "etcd://";

Result<MasterAddress> ParseUnnamed(std::string_view text) {
  MasterAddress address;
  if (text.starts_with(kEtcdScheme)) {
    address.etcd = MC_TRY(ParseEtcdMembers(text.substr(kEtcdScheme.size())));
    address.cluster_id = protocol::ClusterIdOfEnvironment();
    return address;
  }
  if (text.contains("://")) {
    return Error(ErrorCode::INVALID_PARAMS, "write host:port or etcd://host:port[;host:port...]");
  }
  address.fixed = MC_TRY(Endpoint::Parse(text, kMasterPort));
  if (address.fixed.port == 0) return Error(ErrorCode::INVALID_PARAMS, "write the port the master listens on");
  return address;
}

}  // namespace

Result<MasterAddress> MasterAddress::Parse(std::string_view text) {
  auto address = ParseUnnamed(text);
  if (!address) return Annotate(address.error(), fmt::format("master address '{}'", text));
  return address;
}

std::string MasterAddress::ToString() const {
  if (etcd.empty()) return fixed.ToString();
  std::string text(kEtcdScheme);
  for (const Endpoint& member : etcd) text += (text.size() > kEtcdScheme.size() ? ";" : "") + member.ToString();
  return text;
}

MasterLocator::MasterLocator(MasterAddress address) : address_(std::move(address)) {
  if (!address_.etcd.empty()) etcd_.emplace(address_.etcd);
}

Result<MasterLocator::Found> MasterLocator::Locate(Deadline deadline) {
  if (!etcd_) return Found{.endpoint = address_.fixed};
  const auto failed = [&](std::string_view why) {
    return Error(ErrorCode::RPC_FAIL, "no master of cluster '{}' at {}: {}", address_.cluster_id, ToString(), why);
  };
  const auto pair = etcd_->Get(protocol::MasterViewKey(address_.cluster_id), deadline);
  if (!pair) return failed(pair.error().message());
  if (!*pair) return failed("none leads");
  auto endpoint = Endpoint::Parse((*pair)->value);
  if (!endpoint || endpoint->port == 0) return failed(fmt::format("'{}' is no address", (*pair)->value));
  return Found{std::move(*endpoint), static_cast<uint64_t>((*pair)->create_revision)};
}

}  // namespace mooncake
