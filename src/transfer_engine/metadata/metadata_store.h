// Where engines that do not know each other's addresses find each other: text under keys, on a server.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"

namespace mooncake {

// Calls block until the deadline at most; any thread. METADATA_ERROR naming the server and what it said.
class MetadataStore {
 public:
  virtual ~MetadataStore() = default;
  // nullopt: no such key.
  virtual Result<std::optional<std::string>> Get(const std::string& key, Deadline deadline) = 0;
  virtual Result<void> Put(const std::string& key, const std::string& value, Deadline deadline) = 0;
  // A key that does not exist is removed all the same.
  virtual Result<void> Remove(const std::string& key, Deadline deadline) = 0;
};

// "http://host:port/path", "etcd://host:port[;host:port...]", "redis://host:port", or "host:port" (etcd).
// INVALID_PARAMS for another scheme. Does not connect.
Result<std::unique_ptr<MetadataStore>> OpenMetadataStore(const std::string& connection);

// Keys of MC_METADATA_CLUSTER_ID's cluster: "mooncake/ram/<segment>" and "mooncake/rpc_meta/<server>".
std::string SegmentKey(const std::string& segment);
std::string RpcMetaKey(const std::string& server);

}  // namespace mooncake
