// A client in a process of its own, for tests that kill or stop it: joins the master at port argv[1], puts argv[2] keys
// ("node0", ...) of argv[3] bytes each, prints "ready" and stays until its standard input ends.
#include <cstdio>
#include <cstdlib>

#include "client/real_client.h"

int main(int argc, char** argv) {
  using namespace mooncake;
  if (argc != 4) return 2;
  RealClientOptions options;
  options.local_hostname = "127.0.0.1";
  options.master = {"127.0.0.1", static_cast<uint16_t>(std::atoi(argv[1]))};
  options.require_master = true;
  TierConfig tier;
  tier.type = kDramTierType;
  tier.capacity_bytes = 64 << 20;
  options.tiers.tiers.push_back(tier);
  auto client = RealClient::Open(std::move(options));
  if (!client) {
    std::fprintf(stderr, "%s\n", client.error().ToString().c_str());
    return 1;
  }
  std::vector<std::byte> value(static_cast<size_t>(std::atoi(argv[3])), std::byte{0x42});
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    const std::string key = "node" + std::to_string(i);
    const PutItem item{key, HostRange(value)};
    if (const auto put = (*client)->BatchPut(std::span(&item, 1))[0]; !put) return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
