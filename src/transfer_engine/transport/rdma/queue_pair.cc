// State changes of a queue pair.
#include "transfer_engine/transport/rdma/queue_pair.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "common/log.h"

namespace mooncake::rdma {
namespace {

constexpr uint32_t kPacketMask = 0xffffff;  // packet numbers and queue pair numbers have 24 bits
constexpr uint8_t kHopLimit = 64;
constexpr uint8_t kNotReadyTimer = 12;  // 0.64 ms

uint8_t ReadDepth(int offered, uint8_t wanted) {
  return static_cast<uint8_t>(std::clamp<int>(offered, 1, wanted));
}

Result<void> CheckAddress(const QueueAddress& address) {
  if (address.number <= kPacketMask && address.first_packet <= kPacketMask && address.gid.size() == sizeof(ibv_gid) &&
      address.mtu >= IBV_MTU_256 && address.mtu <= IBV_MTU_4096) {
    return {};
  }
  return Error(ErrorCode::INVALID_PARAMS,
               "no queue pair can have number {}, packet {}, {} bytes of GID and MTU code {}", address.number,
               address.first_packet, address.gid.size(), address.mtu);
}

}  // namespace

Result<std::unique_ptr<QueuePair>> QueuePair::OpenSender(RdmaDevice& device, const RdmaOptions& options,
                                                         RdmaDevice::OnCompletions on_completions) {
  std::unique_ptr<QueuePair> pair(new QueuePair(device, options));
  pair->seat_ = MC_TRY(device.TakeSeat(std::move(on_completions)));
  ibv_cq* queue = pair->seat_->queue;
  return Finish(std::move(pair), queue, device.queue_depth());
}

Result<std::unique_ptr<QueuePair>> QueuePair::OpenReceiver(RdmaDevice& device, const RdmaOptions& options) {
  return Finish(std::unique_ptr<QueuePair>(new QueuePair(device, options)), device.passive_queue(), 1);
}

Result<std::unique_ptr<QueuePair>> QueuePair::Finish(std::unique_ptr<QueuePair> pair, ibv_cq* queue, uint32_t depth) {
  thread_local std::minstd_rand random(std::random_device{}());
  pair->port_ = pair->device_.port();
  pair->first_packet_ = static_cast<uint32_t>(random()) & kPacketMask;
  pair->depth_ = depth;
  ibv_qp_init_attr wanted{};
  wanted.send_cq = queue;
  wanted.recv_cq = queue;
  wanted.cap = {.max_send_wr = depth, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  wanted.qp_type = IBV_QPT_RC;
  wanted.sq_sig_all = 0;
  pair->pair_ = pair->device_.verbs().create_qp(pair->device_.pd(), &wanted);
  if (pair->pair_ == nullptr) {
    const int error = errno;
    return std::unexpected(Status(ErrorCode::TRANSFER_FAIL,
                                  fmt::format("RDMA device {} makes no queue pair of {} requests: {}",
                                              pair->device_.name(), depth, std::strerror(error)),
                                  error));
  }
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = pair->options_.pkey_index;
  attributes.port_num = pair->options_.port;
  attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  MC_TRY(pair->Modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT"));
  return pair;
}

QueuePair::~QueuePair() {
  if (seat_) device_.LeaveSeat(*seat_);
  if (pair_ == nullptr) return;
  const int rc = device_.verbs().destroy_qp(pair_);
  if (rc != 0) log::Error("RDMA device {} keeps a queue pair: {}", device_.name(), std::strerror(rc));
}

QueueAddress QueuePair::Address() const {
  return {.number = pair_->qp_num,
          .first_packet = first_packet_,
          .gid = std::vector<uint8_t>(port_.gid.gid.begin(), port_.gid.gid.end()),
          .lid = port_.lid,
          .mtu = static_cast<uint8_t>(port_.mtu),
          .read_depth = ReadDepth(device_.attributes().max_qp_rd_atom, options_.read_depth)};
}

Result<void> QueuePair::Modify(ibv_qp_attr& attributes, int mask, const char* what) {
  const int rc = device_.verbs().modify_qp(pair_, &attributes, mask);
  if (rc == 0) return {};
  return std::unexpected(
      Status(ErrorCode::TRANSFER_FAIL,
             fmt::format("a queue pair of RDMA device {} (GID index {}, {}) does not go to {}: {}", device_.name(),
                         port_.gid.index, FormatGid(port_.gid.gid), what, std::strerror(rc)),
             rc));
}

Result<void> QueuePair::Receive(const QueueAddress& peer) {
  MC_TRY(CheckAddress(peer));
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = std::min(port_.mtu, static_cast<ibv_mtu>(peer.mtu));
  attributes.dest_qp_num = peer.number;
  attributes.rq_psn = peer.first_packet;
  attributes.max_dest_rd_atomic = ReadDepth(device_.attributes().max_qp_rd_atom, options_.read_depth);
  attributes.min_rnr_timer = kNotReadyTimer;
  attributes.ah_attr.port_num = options_.port;
  attributes.ah_attr.dlid = peer.lid;
  attributes.ah_attr.sl = options_.service_level;
  // Without routers InfiniBand needs no global header; the subnet is the upper half of the GID.
  const bool same_subnet = std::equal(peer.gid.begin(), peer.gid.begin() + 8, port_.gid.gid.begin());
  if (port_.ethernet || !same_subnet) {
    attributes.ah_attr.is_global = 1;
    std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid.data(), sizeof(ibv_gid));
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(port_.gid.index);
    attributes.ah_attr.grh.hop_limit = kHopLimit;
    attributes.ah_attr.grh.traffic_class = options_.traffic_class;
  }
  return Modify(attributes,
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                "RTR");
}

Result<void> QueuePair::Send(const QueueAddress& peer) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = first_packet_;
  attributes.timeout = options_.ack_timeout;
  attributes.retry_cnt = options_.retry_count;
  attributes.rnr_retry = options_.rnr_retry;
  attributes.max_rd_atomic = std::min(ReadDepth(device_.attributes().max_qp_init_rd_atom, options_.read_depth),
                                      std::max<uint8_t>(peer.read_depth, 1));
  return Modify(
      attributes,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
      "RTS");
}

Result<void> QueuePair::ToError() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  return Modify(attributes, IBV_QP_STATE, "ERR");
}

bool QueuePair::Post(ibv_send_wr* requests, ibv_send_wr** first_refused) {
  return ibv_post_send(pair_, requests, first_refused) == 0;
}

}  // namespace mooncake::rdma
