// etcd 3 through its JSON gateway: pairs, leases, and a pair that only one process can create.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/status.h"

namespace mooncake {

// "host:port[;host:port...]", also with commas. Without a port: 2379. INVALID_PARAMS naming what is wrong.
Result<std::vector<Endpoint>> ParseEtcdMembers(std::string_view text);

// Any thread; calls block until the deadline at most. Members are tried in turn, the one that answered last first; one
// that is silent costs its share of the time only. Every call may reach etcd twice, and means the same then.
// METADATA_ERROR naming the member and what it said. Keys and values are any bytes.
class EtcdClient {
 public:
  using LeaseId = int64_t;  // 0: none
  struct Pair {
    std::string value;
    int64_t create_revision = 0;  // grows with every change in the cluster: a later pair has a greater one
    LeaseId lease = 0;
  };
  struct Lease {
    LeaseId id = 0;
    std::chrono::seconds ttl{};  // may be more than what was asked for
  };
  struct Creation {
    bool created = false;
    Pair pair;  // what is there now
  };

  explicit EtcdClient(std::vector<Endpoint> members);  // at least one

  // nullopt: no such key.
  Result<std::optional<Pair>> Get(const std::string& key, Deadline deadline);
  Result<void> Put(const std::string& key, const std::string& value, Deadline deadline);
  // A key that does not exist is removed all the same.
  Result<void> Remove(const std::string& key, Deadline deadline);
  // Creates the pair, to go with the lease, unless the key is there. Of many that try exactly one succeeds.
  Result<Creation> Create(const std::string& key, const std::string& value, LeaseId lease, Deadline deadline);

  Result<Lease> GrantLease(std::chrono::seconds ttl, Deadline deadline);
  // The lease lives for the returned time from the call on, at least; 0: it is gone.
  Result<std::chrono::seconds> KeepLease(LeaseId lease, Deadline deadline);
  // Its pairs go with it. A lease that is gone is no error.
  Result<void> RevokeLease(LeaseId lease, Deadline deadline);

 private:
  struct Answer;
  Result<Answer> Ask(const char* path, const std::string& request, Deadline deadline);

  const std::vector<Endpoint> members_;
  std::atomic<size_t> preferred_ = 0;
};

}  // namespace mooncake
