// Moves bytes between host memory of two processes over a few long-lived TCP connections per pair.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "transfer_engine/transport.h"
#include "transfer_engine/transport/tcp/tcp_options.h"
#include "transfer_engine/transport_context.h"

namespace mooncake {

namespace tcp {
class EventLoop;
class Listener;
class Peer;
struct PeerEnvironment;
}  // namespace tcp

// Reaches host memory with a key, from host memory. Threads: options.io_threads event loops of its own.
//
// A write is complete when its bytes are in place, a read when all of it has arrived. A request is sent again on a new
// connection when the one it was on breaks, once; the target has let go of the old connection by then. A write that
// ended with an error may have been sent, so that its bytes may yet arrive at the target, until the target withdraws
// the region or revokes the grant, or calls Fence.
class TcpTransport final : public Transport {
 public:
  // Errors name the port, the address or the environment variable that is wrong.
  static Result<std::unique_ptr<TcpTransport>> Open(const TransportContext& context);
  static Result<std::unique_ptr<TcpTransport>> Open(const TransportContext& context, const tcp::TcpOptions& options);
  ~TcpTransport() override;

  const char* name() const override { return "tcp"; }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor& target, const SegmentRegion& region) const override;
  void WithdrawRegion(const Region& region) override;
  void Describe(SegmentDescriptor& self) const override;
  void Submit(std::vector<TransferOperation> operations, Caller caller) override;
  void Cancel(BatchId tag) override;
  void Fence(const Uuid& node) override;

  uint16_t port() const;
  size_t open_sessions() const;  // connections of peers, accepted and not closed yet

 private:
  using PeerKey = std::pair<std::string, Uuid>;  // endpoint and generation

  TcpTransport(const TransportContext& context, const tcp::TcpOptions& options,
               std::vector<std::shared_ptr<tcp::EventLoop>> loops);
  std::shared_ptr<tcp::Peer> PeerFor(const SegmentDescriptor& target);
  void RetireIdlePeers();
  void SubmitTo(const SegmentPtr& target, std::vector<TransferOperation> operations, size_t inline_bytes);

  const std::string advertised_host_;
  const std::shared_ptr<tcp::PeerEnvironment> environment_;
  std::unique_ptr<tcp::Listener> listener_;

  std::mutex mutex_;
  bool closed_ = false;
  size_t next_home_ = 0;
  std::map<PeerKey, std::shared_ptr<tcp::Peer>> peers_;
};

}  // namespace mooncake
