// Reading and checking the options of the tcp transport.
#include "transfer_engine/transport/tcp/tcp_options.h"

#include <charconv>

#include "common/env.h"
#include "transfer_engine/transport/tcp/page_pipe.h"
#include "transfer_engine/transport/tcp/tcp_socket.h"
#include "transfer_engine/transport/tcp/tcp_wire.h"

namespace mooncake::tcp {
namespace {

constexpr size_t kLendBytes = 4 << 20;

Result<uint64_t> Number(const env::Variable& variable, uint64_t unset, uint64_t low, uint64_t high) {
  const auto text = env::Get(variable);
  if (!text || text->empty()) return unset;
  uint64_t value = 0;
  const char* end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < low || value > high) {
    return Error(ErrorCode::INVALID_PARAMS, "{}: '{}' is not a number from {} to {}", variable.name, *text, low, high);
  }
  return value;
}

}  // namespace

Result<TcpOptions> TcpOptions::FromEnvironment() {
  TcpOptions options;
  options.port = static_cast<uint16_t>(MC_TRY(Number(env::kTcpDataPort, options.port, 0, 65535)));
  options.lanes_per_peer = MC_TRY(Number(env::kTcpLanesPerPeer, options.lanes_per_peer, 1, 16));
  options.max_connections = MC_TRY(Number(env::kTcpMaxConnections, options.max_connections, 1, 1 << 20));
  options.lend_bytes = MC_TRY(Number(env::kTcpLendBytes, options.lend_bytes, 0, UINT64_MAX));
  options.congestion = env::Get(env::kTcpCongestion).value_or("");
  options.interface = env::Get(env::kTcpInterface).value_or("");
  return options;
}

Result<void> TcpOptions::Check() const {
  if (lanes_per_peer < 1 || lanes_per_peer > 16) {
    return Error(ErrorCode::INVALID_PARAMS, "tcp: {} connections per peer; 1 to 16 are possible", lanes_per_peer);
  }
  if (chunk_bytes == 0 || chunk_bytes > kMaxRequestBytes) {
    return Error(ErrorCode::INVALID_PARAMS, "tcp: requests of {} bytes; 1 to {} are possible", chunk_bytes,
                 kMaxRequestBytes);
  }
  if (window_bytes == 0 || window_requests == 0 || max_connections == 0) {
    return Error(ErrorCode::INVALID_PARAMS, "tcp: a limit is 0 in {}", ToString());
  }
  if (!congestion.empty()) MC_TRY(CheckCongestion(congestion));
  return {};
}

std::string TcpOptions::ToString() const {
  return fmt::format("{} connections per peer, {} accepted, requests of {} bytes, {} bytes and {} requests in flight",
                     lanes_per_peer, max_connections, chunk_bytes, window_bytes, window_requests);
}

size_t TcpOptions::DefaultLendBytes() {
  return PagePipe::WorthIt() ? kLendBytes : 0;
}

}  // namespace mooncake::tcp
