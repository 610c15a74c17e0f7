// Parts that land with other branches; only compiled until then.
#include "transfer_engine/metadata/metadata_store.h"

namespace mooncake {
Result<std::unique_ptr<MetadataStore>> OpenMetadataStore(const std::string& connection) {
  return Error(ErrorCode::INVALID_PARAMS, "metadata server '{}' is not supported", connection);
}
std::string SegmentKey(const std::string& segment) {
  return "mooncake/ram/" + segment;
}
std::string RpcMetaKey(const std::string& server) {
  return "mooncake/rpc_meta/" + server;
}
}  // namespace mooncake
