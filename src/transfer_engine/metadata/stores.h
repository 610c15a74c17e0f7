// The kinds of metadata servers; OpenMetadataStore chooses among them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "transfer_engine/metadata/metadata_store.h"

namespace mooncake {

// GET, PUT and DELETE <path>?key=...; 404: no such key.
std::unique_ptr<MetadataStore> OpenHttpMetadata(Endpoint server, std::string path);

// The JSON gateway of etcd 3. Members are tried in turn, the one that answered last first.
std::unique_ptr<MetadataStore> OpenEtcdMetadata(std::vector<Endpoint> members);

struct RedisOptions {
  Endpoint server;
  std::string username;  // "": the default user
  std::string password;  // "": no AUTH
  uint32_t database = 0;
};
// Keeps a few connections; a broken one is replaced, also within a call.
std::unique_ptr<MetadataStore> OpenRedisMetadata(RedisOptions options);

}  // namespace mooncake
