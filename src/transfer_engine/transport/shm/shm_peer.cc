// The other process of shm_process_test: owns a shared region, does as it is told on stdin, and dies with its parent.
//   target SOCKET HOST GEN GEN ID ADDRESS LENGTH | write SEED | loop | check SEED | withdraw
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <iostream>
#include <sstream>
#include <thread>

#include "transfer_engine/transport/shm/test_shm_pair.h"

namespace mooncake {
namespace {

std::string Told(const Result<void>& result) {
  return result ? "OK" : std::string(ErrorCodeName(result.error().code()));
}

class Peer {
 public:
  explicit Peer(size_t bytes) : buffer_(MakeShared(bytes)), region_(node_.Register(*buffer_)) {
    const SegmentPtr self = node_.Describe();
    Say(fmt::format("{} {} {} {} {} {} {}", self->shm_socket, self->host_id, self->generation.first,
                    self->generation.second, self->regions[0].shm_id, self->regions[0].address,
                    self->regions[0].length));
  }
  ~Peer() {
    if (loop_.joinable()) loop_.detach();  // ends with the process
  }
  void Obey(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    unsigned seed = 0;
    words >> command;
    if (command == "target") return SetTarget(words);
    if (command == "withdraw") {
      node_.context.Unregister(*node_.transport, region_);
      return Say(std::to_string(node_.transport->unacknowledged()));
    }
    words >> seed;
    if (command == "write") return Say(Told(Write(seed)));
    if (command == "check")
      return Say(Copied(buffer_->memory()) == Pattern(buffer_->size(), seed) ? "OK" : "DIFFERENT");
    if (command == "loop") {
      Say(Told(Write(1)));
      loop_ = std::thread([this] {
        for (unsigned round = 0; Write(round); ++round) {
        }
      });
    }
  }

 private:
  static void Say(const std::string& line) { std::cout << line << '\n' << std::flush; }
  void SetTarget(std::istream& words) {
    auto segment = std::make_shared<SegmentDescriptor>();
    SegmentRegion region;
    words >> segment->shm_socket >> segment->host_id >> segment->generation.first >> segment->generation.second >>
        region.shm_id >> region.address >> region.length;
    segment->name = "parent";
    segment->regions = {region};
    target_ = segment;
    Say("OK");
  }
  Result<void> Write(unsigned seed) {
    Bytes bytes = Pattern(target_->regions[0].length, seed);
    return Do(*node_.transport, TransferOpcode::kWrite, HostRange(bytes), target_, target_->regions[0].address);
  }

  const std::unique_ptr<SharedBuffer> buffer_;
  ShmNode node_;
  const std::shared_ptr<Region> region_;
  SegmentPtr target_;
  std::thread loop_;
};

}  // namespace
}  // namespace mooncake

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  mooncake::Peer peer(argc > 1 ? std::stoull(argv[1]) : 4096);
  for (std::string line; std::getline(std::cin, line);) peer.Obey(line);
  std::cout.flush();
  _exit(0);
}
