// The calling side: one pipelined connection to one peer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/status.h"
#include "rpc/codec.h"
#include "rpc/identity.h"
#include "rpc/io_pool.h"
#include "rpc/spans.h"

namespace mooncake::rpc {

namespace internal {
class ClientCore;
}

struct ClientOptions {
  Endpoint peer{};
  Identity self{};
  std::string expected_role{};  // "" = any
  Uuid expected_node{};         // nil = any
  Duration connect_timeout = std::chrono::seconds(2);
  size_t max_in_flight = 4096;  // calls beyond are refused with RPC_FAIL
  uint32_t max_body_bytes = 64u << 20;
  uint64_t max_payload_bytes = 1ull << 30;
};

// Says where the payload of a successful response goes. Called on an I/O thread with the response body, at most once
// and only when there is a payload; must not block. The spans must total `payload_bytes` and stay valid until the
// call's completion; an error or another total discards the payload and fails the call.
using PayloadSink =
    std::move_only_function<Result<std::vector<MutableSpan>>(std::string_view response_body, uint64_t payload_bytes)>;

// What travels beside the body. The memory belongs to the call until its completion runs (or the blocking Call
// returns).
struct CallArguments {
  std::vector<ConstSpan> payload{};  // sent as it lies, after the body
  PayloadSink sink{};                // without one a response that carries a payload fails the call
};

// Any thread. Connects at the first call and again after a failure; while the peer stays unreachable calls fail at once
// with the last error and one attempt is made per 100 ms, growing to 1 s. Errors of the transport:
//   RPC_FAIL         unreachable, connection lost, or the deadline passed ("timeout ...")
//   INVALID_VERSION  the peers speak no common protocol version; the text names both
//   ILLEGAL_CLIENT   somebody else answers at that address
//   SHUTTING_DOWN    after Close or the end of the pool
// Anything else is the Status the peer's handler failed with.
class RpcClient {
 public:
  static std::shared_ptr<RpcClient> Create(IoPool& pool, ClientOptions options);
  ~RpcClient();  // as Close
  RpcClient(const RpcClient&) = delete;
  RpcClient& operator=(const RpcClient&) = delete;

  // Receives the response body, or why there is none.
  using Completion = std::move_only_function<void(Result<std::string>)>;

  // `completion` runs exactly once, on an I/O thread, when no byte of the call's payload or sink memory is touched any
  // more; it must not block. A call whose deadline passes while bytes move closes the connection (other calls on it
  // fail), otherwise it just ends and a late response is discarded.
  void CallAsync(uint16_t method, std::string body, CallArguments arguments, Deadline deadline, Completion completion);

  // Blocks; never from an I/O thread or a completion.
  Result<std::string> Call(uint16_t method, std::string body, Deadline deadline, CallArguments arguments = {});

  // Encode, call, decode. A response that is no Response is INVALID_PARAMS.
  template <typename Response, typename Request>
  Result<Response> Call(uint16_t method, const Request& request, Deadline deadline, CallArguments arguments = {}) {
    const std::string body = MC_TRY(Call(method, Encode(request), deadline, std::move(arguments)));
    return Decode<Response>(body);
  }

  // Connects and shakes hands now, unless that is done already. Blocks.
  Result<void> Connect(Deadline deadline);

  // Of the last successful handshake; empty before.
  Identity peer_identity() const;
  bool connected() const;

  // Fails every call in flight with SHUTTING_DOWN and refuses new ones. Does not wait for the completions.
  void Close();

 private:
  explicit RpcClient(std::shared_ptr<internal::ClientCore> core);

  const std::shared_ptr<internal::ClientCore> core_;
};

}  // namespace mooncake::rpc
