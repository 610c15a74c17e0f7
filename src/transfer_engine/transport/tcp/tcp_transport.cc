// Ties listener, peers and loops together.
#include "transfer_engine/transport/tcp/tcp_transport.h"

#include "common/log.h"
#include "transfer_engine/transport/tcp/event_loop.h"
#include "transfer_engine/transport/tcp/tcp_listener.h"
#include "transfer_engine/transport/tcp/tcp_peer.h"

namespace mooncake {
namespace {

// Sent on the thread of the caller before the loop takes over.
constexpr size_t kInlineBytes = 64 << 10;
constexpr size_t kInlineBytesOfWaiter = 1 << 20;

// Why an operation cannot even be tried; empty: it can.
std::optional<Status> Refusal(const TransferOperation& operation) {
  if (operation.deadline.Passed()) {
    return Status(ErrorCode::TRANSFER_TIMEOUT, "tcp: submitted after its deadline");
  }
  if (!IsHost(operation.local)) return Status(ErrorCode::TRANSFER_FAIL, "tcp: NPU memory cannot be sent or filled");
  if (!operation.region.Covers(operation.target_address, operation.length())) {
    return Status(ErrorCode::ADDRESS_NOT_REGISTERED,
                  fmt::format("tcp: [{:#x}, +{}) is outside the region [{:#x}, +{})", operation.target_address,
                              operation.length(), operation.region.address, operation.region.length));
  }
  if (operation.target->tcp_data.port == 0) {
    return Status(ErrorCode::TRANSFER_FAIL, fmt::format("tcp: '{}' has no data port", operation.target->name));
  }
  return std::nullopt;
}

}  // namespace

TcpTransport::TcpTransport(const TransportContext& context, const tcp::TcpOptions& options,
                           std::vector<std::shared_ptr<tcp::EventLoop>> loops)
    : advertised_host_(context.advertised.host),
      environment_(std::make_shared<tcp::PeerEnvironment>(options, context.generation, std::move(loops),
                                                          &context.workers, tcp::TcpMetrics(context.metrics))) {}

Result<std::unique_ptr<TcpTransport>> TcpTransport::Open(const TransportContext& context) {
  return Open(context, MC_TRY(tcp::TcpOptions::FromEnvironment()));
}

Result<std::unique_ptr<TcpTransport>> TcpTransport::Open(const TransportContext& context,
                                                         const tcp::TcpOptions& options) {
  MC_TRY(options.Check());
  std::vector<std::shared_ptr<tcp::EventLoop>> loops;
  for (size_t i = 0; i < std::max<size_t>(context.options.io_threads, 1); ++i) {
    loops.push_back(MC_TRY(tcp::EventLoop::Start(context.options.spin)));
  }
  std::unique_ptr<TcpTransport> transport(new TcpTransport(context, options, loops));
  transport->listener_ = MC_TRY(tcp::Listener::Open(context.regions, transport->environment_->metrics, options,
                                                    context.generation, context.bind_host, std::move(loops)));
  log::Info("tcp transport on data port {}: {}", transport->port(), options.ToString());
  return transport;
}

TcpTransport::~TcpTransport() {
  std::map<PeerKey, std::shared_ptr<tcp::Peer>> peers;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    peers.swap(peers_);
  }
  for (const auto& [key, peer] : peers) peer->Close();
  // A system call that still moved bytes of an operation has returned, and the operation has ended, when its loop has.
  for (const auto& loop : environment_->loops) loop->Stop();
}

bool TcpTransport::Reaches(const MemoryRange& local, const SegmentDescriptor& target,
                           const SegmentRegion& region) const {
  return IsHost(local) && target.tcp_data.port != 0 && region.key != 0 && !region.location.starts_with("npu");
}

void TcpTransport::WithdrawRegion(const Region&) {
  listener_->CheckUses();
}

void TcpTransport::Describe(SegmentDescriptor& self) const {
  self.tcp_data = {advertised_host_, port()};
  self.protocols.emplace_back(name());
}

uint16_t TcpTransport::port() const {
  return listener_->port();
}

size_t TcpTransport::open_sessions() const {
  return listener_->open_sessions();
}

// Peers that were left, among them processes that are gone.
void TcpTransport::RetireIdlePeers() {
  std::erase_if(peers_, [](const auto& entry) { return entry.second->RetireIfIdle(); });
}

std::shared_ptr<tcp::Peer> TcpTransport::PeerFor(const SegmentDescriptor& target) {
  std::lock_guard lock(mutex_);
  if (closed_) return nullptr;
  PeerKey key(target.tcp_data.ToString(), target.generation);
  if (const auto found = peers_.find(key); found != peers_.end()) return found->second;
  RetireIdlePeers();
  auto peer = std::make_shared<tcp::Peer>(environment_, target.tcp_data, target.generation, next_home_++);
  peers_.emplace(std::move(key), peer);
  return peer;
}

void TcpTransport::SubmitTo(const SegmentPtr& target, std::vector<TransferOperation> operations, size_t inline_bytes) {
  // A peer may be retired between being found and being told; then there is a new one.
  while (const auto peer = PeerFor(*target)) {
    if (peer->Submit(operations, inline_bytes)) return;
  }
  for (TransferOperation& operation : operations) {
    operation.local_use.Release();
    operation.done(Error(ErrorCode::SHUTTING_DOWN, "the tcp transport is closed"));
  }
}

void TcpTransport::Submit(std::vector<TransferOperation> operations, Caller caller) {
  const size_t inline_bytes = caller == Caller::kWaits ? kInlineBytesOfWaiter : kInlineBytes;
  std::vector<TransferOperation> group;
  SegmentPtr target;
  for (TransferOperation& operation : operations) {
    if (auto refusal = Refusal(operation)) {
      operation.local_use.Release();
      operation.done(std::unexpected(std::move(*refusal)));
      continue;
    }
    if (operation.target != target && !group.empty()) {
      SubmitTo(target, std::exchange(group, {}), inline_bytes);
    }
    target = operation.target;
    group.push_back(std::move(operation));
  }
  if (!group.empty()) SubmitTo(target, std::move(group), inline_bytes);
}

void TcpTransport::Cancel(BatchId tag) {
  std::vector<std::shared_ptr<tcp::Peer>> peers;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, peer] : peers_) peers.push_back(peer);
  }
  for (const auto& peer : peers) peer->Cancel(tag);
}

void TcpTransport::Fence(const Uuid& node) {
  listener_->CloseSessionsOf(node);
}

}  // namespace mooncake
