// Metadata in etcd 3.
#include "coordination/etcd_client.h"
#include "transfer_engine/metadata/stores.h"

namespace mooncake {
namespace {

class EtcdMetadata final : public MetadataStore {
 public:
  explicit EtcdMetadata(std::vector<Endpoint> members) : etcd_(std::move(members)) {}

  Result<std::optional<std::string>> Get(const std::string& key, Deadline deadline) override {
    auto pair = MC_TRY(etcd_.Get(key, deadline));
    if (!pair) return std::nullopt;
    return std::move(pair->value);
  }
  Result<void> Put(const std::string& key, const std::string& value, Deadline deadline) override {
    return etcd_.Put(key, value, deadline);
  }
  Result<void> Remove(const std::string& key, Deadline deadline) override { return etcd_.Remove(key, deadline); }

 private:
  EtcdClient etcd_;
};

}  // namespace

std::unique_ptr<MetadataStore> OpenEtcdMetadata(std::vector<Endpoint> members) {
  return std::make_unique<EtcdMetadata>(std::move(members));
}

}  // namespace mooncake
