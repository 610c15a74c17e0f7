// Messages between processes of one host over an abstract unix socket; some carry a memfd.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/fd.h"
#include "common/status.h"
#include "common/uuid.h"

namespace mooncake::shm {

enum class Kind : uint16_t {
  kHello = 1,  // asker, first: `sender`, and `expected` is whom it wants
  kStale,      // owner: I am not the one, but `sender`
  kMap,        // asker, whom the NPU driver knows as `asker`: give me region `id`
  kMapped,     // owner: region `id` is [address, +length), `offset` bytes into the file that comes along, or into `key`
  kUnknown,    // owner: there is no region `id`
  kRevoke,     // owner: stop using region `id`; answer with `revocation` when nothing uses it any more
  kRevokeAll,  // owner: the same for every region handed out so far
  kRevoked,    // asker: done
};

// Same host, so plain memory. The socket keeps the bounds of messages.
struct Message {
  uint32_t magic = kMagic;
  Kind kind = Kind::kHello;
  uint16_t zero = 0;
  uint64_t id = 0;
  uint64_t revocation = 0;
  uint64_t address = 0;
  uint64_t length = 0;
  uint64_t offset = 0;
  Uuid sender;
  Uuid expected;
  int64_t asker = 0;
  std::array<char, 72> key{};  // of NPU memory; ends with a NUL

  static constexpr uint32_t kMagic = 0x4d435331;
};

// Names of sockets begin with this. It changes with Message, so that versions that do not understand each other see
// each other as not reachable this way.
inline constexpr std::string_view kSocketPrefix = "mooncake-shm-2-";

struct Credentials {
  pid_t pid = 0;  // 0: of another pid namespace
  uid_t uid = 0;
};

// A connection; closed when the last owner goes. Sending from any thread, receiving from one.
class Socket {
 public:
  enum class Sent { kYes, kFull, kBroken };
  enum class Received { kMessage, kNothing, kClosed, kGarbage };

  explicit Socket(Fd fd);
  int fd() const { return fd_.get(); }
  const Credentials& peer() const { return peer_; }

  // Never block. `fd` -1: none.
  Sent Send(const Message& message, int fd = -1) const;
  // `fd` is set when a message brought exactly one descriptor; more than that is garbage, and they are closed.
  Received Receive(Message& message, Fd& fd) const;
  // Both sides see the end; the descriptor stays until the last owner goes.
  void Shutdown() const;

  // False once the peer is known to be gone.
  bool alive() const { return alive_.load(std::memory_order_acquire); }
  void MarkDead() { alive_.store(false, std::memory_order_release); }

 private:
  const Fd fd_;
  Credentials peer_;
  std::atomic<bool> alive_{true};
};

// True for the same user and for root; everybody with `any_user`.
bool MayShare(const Credentials& peer, bool any_user);

// Does not block; a name nobody listens at is STALE_SEGMENT.
Result<std::shared_ptr<Socket>> ConnectTo(const std::string& name);

// Listens at a random name.
class Listener {
 public:
  static Result<std::unique_ptr<Listener>> Open();
  const std::string& name() const { return name_; }
  int fd() const { return fd_.get(); }
  // A connection that has come, or null. Never blocks.
  std::shared_ptr<Socket> Accept();

 private:
  Listener(Fd fd, std::string name);
  const Fd fd_;
  const std::string name_;
  Fd spare_;  // given up for a moment to turn a peer away when the process has no descriptor left
};

}  // namespace mooncake::shm
