// Where in etcd the leading master of a cluster is written down: a pair whose value is "host:port" of the leader and
// whose create revision is its term.
#pragma once

#include <string>
#include <string_view>

#include "common/env.h"

namespace mooncake::protocol {

inline constexpr const char* kDefaultClusterId = "mooncake_cluster";

// What MC_STORE_CLUSTER_ID says, else the default.
inline std::string ClusterIdOfEnvironment() {
  const auto named = env::Get(env::kStoreClusterId);
  return named && !named->empty() ? *named : kDefaultClusterId;
}

inline std::string MasterViewKey(std::string_view cluster_id) {
  return "mooncake-store/" + std::string(cluster_id) + "/master_view";
}

}  // namespace mooncake::protocol
