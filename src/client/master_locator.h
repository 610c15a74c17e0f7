// Where the master is: at a fixed address, or wherever etcd says that the leader of several is.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "coordination/etcd_client.h"
#include "protocol/master_view.h"

namespace mooncake {

struct MasterAddress {
  Endpoint fixed{"127.0.0.1", 50051};  // when `etcd` is empty
  std::vector<Endpoint> etcd;          // members of the etcd that knows the leader
  std::string cluster_id = protocol::kDefaultClusterId;

  // "host[:port]", or "etcd://host[:port][;host[:port]...]" with the cluster of MC_STORE_CLUSTER_ID. INVALID_PARAMS
  // for anything else.
  static Result<MasterAddress> Parse(std::string_view text);
  std::string ToString() const;
  // An address in its direction, to choose the network that faces it.
  const Endpoint& facing() const { return etcd.empty() ? fixed : etcd.front(); }
};

// Any thread.
class MasterLocator {
 public:
  struct Found {
    Endpoint endpoint;
    uint64_t term = 0;  // a later leader has a greater one; 0 for a fixed address
  };

  explicit MasterLocator(MasterAddress address);

  // Blocks until the deadline at most; at once for a fixed address. RPC_FAIL when etcd does not say, or knows no leader
  // right now.
  Result<Found> Locate(Deadline deadline);
  bool fixed() const { return !etcd_; }
  std::string ToString() const { return address_.ToString(); }

 private:
  const MasterAddress address_;
  std::optional<EtcdClient> etcd_;
};

}  // namespace mooncake
