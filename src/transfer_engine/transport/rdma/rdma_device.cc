// Opening a device, and the thread that serves it.
#include "transfer_engine/transport/rdma/rdma_device.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>

#include "common/check.h"
#include "common/log.h"

namespace mooncake::rdma {
namespace {

constexpr int kQueueEntries = 8192;  // of a completion queue; shared by queue pairs
constexpr int kBatch = 32;
constexpr int kBatchesPerRound = 32;  // before other descriptors get their turn

std::unexpected<Status> DeviceError(const std::string& device, std::string_view what) {
  const int error = errno;
  return std::unexpected(Status(ErrorCode::DEVICE_NOT_FOUND,
                                fmt::format("RDMA device {}: {}: {}", device, what, std::strerror(error)), error));
}

void MakeNonBlocking(int descriptor) {
  const int flags = fcntl(descriptor, F_GETFL);
  MC_CHECK(flags >= 0 && fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0, "descriptor {}: {}", descriptor,
           std::strerror(errno));
}

ibv_mtu MtuOf(uint32_t bytes) {
  return static_cast<ibv_mtu>(std::countr_zero(bytes) - 7);  // IBV_MTU_256 is 1
}

}  // namespace

Result<std::unique_ptr<RdmaDevice>> RdmaDevice::Open(const Verbs& verbs, const std::string& name,
                                                     const RdmaOptions& options) {
  int count = 0;
  ibv_device** list = verbs.get_device_list(&count);
  if (list == nullptr) return DeviceError(name, "the list of devices cannot be read");
  ibv_context* context = nullptr;
  std::string present;
  errno = 0;
  for (int i = 0; i < count; ++i) {
    const std::string found = verbs.get_device_name(list[i]);
    if (found == name) context = verbs.open_device(list[i]);
    present += present.empty() ? found : ", " + found;
  }
  const int error = errno;
  verbs.free_device_list(list);
  if (context == nullptr) {
    return Error(ErrorCode::DEVICE_NOT_FOUND, "RDMA device {} cannot be opened ({}); there are: {}", name,
                 error == 0 ? "no such device" : std::strerror(error), present.empty() ? "none" : present);
  }
  std::unique_ptr<RdmaDevice> device(new RdmaDevice(verbs, name, options));
  MC_TRY(device->Set(context));
  return device;
}

Result<void> RdmaDevice::Set(ibv_context* context) {
  context_ = context;
  if (const int rc = verbs_.query_device(context_, &attributes_); rc != 0) {
    errno = rc;
    return DeviceError(name_, "its limits cannot be read");
  }
  port_ = MC_TRY(QueryPort());
  pd_ = verbs_.alloc_pd(context_);
  if (pd_ == nullptr) return DeviceError(name_, "no protection domain");
  channel_ = verbs_.create_comp_channel(context_);
  if (channel_ == nullptr) return DeviceError(name_, "no completion channel");
  passive_queue_ = verbs_.create_cq(context_, 1, nullptr, nullptr, 0);
  if (passive_queue_ == nullptr) return DeviceError(name_, "no completion queue");
  queue_depth_ = std::min(options_.queue_depth, static_cast<uint32_t>(std::max(attributes_.max_qp_wr, 1)));
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) return DeviceError(name_, "no event descriptor");
  MakeNonBlocking(channel_->fd);
  MakeNonBlocking(context_->async_fd);
  return {};
}

RdmaDevice::~RdmaDevice() {
  Stop();
  MC_CHECK(sitters_.empty(), "RDMA device {} is closed with {} queue pairs", name_, sitters_.size());
  for (const CompletionQueue& queue : queues_) verbs_.destroy_cq(queue.queue);
  if (passive_queue_ != nullptr) verbs_.destroy_cq(passive_queue_);
  if (channel_ != nullptr) verbs_.destroy_comp_channel(channel_);
  if (pd_ != nullptr) verbs_.dealloc_pd(pd_);
  if (context_ != nullptr) verbs_.close_device(context_);
  if (wake_ >= 0) close(wake_);
}

void RdmaDevice::Start(OnPortChange on_port_change) {
  on_port_change_ = std::move(on_port_change);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), ("rdma-" + name_).substr(0, 15).c_str());
  const std::vector<int> cpus = CpusNearDevice(name_);
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  // Refused when the process may not run there: then it runs where it may.
  (void)pthread_setaffinity_np(thread_.native_handle(), sizeof(set), &set);
}

void RdmaDevice::Stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  const uint64_t one = 1;
  MC_CHECK(write(wake_, &one, sizeof(one)) == sizeof(one), "event descriptor: {}", std::strerror(errno));
  thread_.join();
}

PortState RdmaDevice::port() const {
  std::lock_guard lock(mutex_);
  return port_;
}

Result<PortState> RdmaDevice::QueryPort() const {
  ibv_port_attr attributes{};
  if (const int rc = verbs_.query_port(context_, options_.port, &attributes); rc != 0) {
    errno = rc;
    return DeviceError(name_, fmt::format("port {} cannot be read", options_.port));
  }
  PortState state;
  state.active = attributes.state == IBV_PORT_ACTIVE;
  state.lid = attributes.lid;
  state.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  state.mtu = std::min(attributes.active_mtu, MtuOf(options_.mtu_bytes));
  const auto read = [this](int index) -> std::optional<GidEntry> {
    ibv_gid_entry entry{};
    if (verbs_.query_gid_entry(context_, options_.port, static_cast<uint32_t>(index), &entry) != 0) return std::nullopt;
    GidEntry result;
    std::memcpy(result.gid.data(), entry.gid.raw, result.gid.size());
    if (entry.gid_type == IBV_GID_TYPE_ROCE_V1) result.kind = GidKind::kRoceV1;
    if (entry.gid_type == IBV_GID_TYPE_ROCE_V2) result.kind = GidKind::kRoceV2;
    return result;
  };
  const Result<GidChoice> gid = ChooseGid(attributes.gid_tbl_len, read, options_.gid_index);
  if (!gid) return Annotate(gid.error(), fmt::format("RDMA device {} port {}", name_, options_.port));
  state.gid = *gid;
  return state;
}

// ---- completion queues

Result<size_t> RdmaDevice::RoomyQueue() {
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (queues_[i].taken < seats_per_queue_) return i;
  }
  const int limit = attributes_.max_cqe > 0 ? attributes_.max_cqe : kQueueEntries;
  const int entries = std::min(std::max<int>(kQueueEntries, static_cast<int>(queue_depth_)), limit);
  ibv_cq* queue = verbs_.create_cq(context_, entries, nullptr, channel_, 0);
  if (queue == nullptr) return DeviceError(name_, fmt::format("no completion queue of {} entries", entries));
  if (const int rc = ibv_req_notify_cq(queue, 0); rc != 0) {
    verbs_.destroy_cq(queue);
    errno = rc;
    return DeviceError(name_, "a completion queue cannot be armed");
  }
  queues_.push_back({.queue = queue});
  seats_per_queue_ = std::max<size_t>(1, static_cast<size_t>(entries) / queue_depth_);
  return queues_.size() - 1;
}

Result<RdmaDevice::Seat> RdmaDevice::TakeSeat(OnCompletions on_completions) {
  auto sitter = std::make_shared<Sitter>();
  sitter->on_completions = std::move(on_completions);
  std::lock_guard lock(mutex_);
  sitter->queue = MC_TRY(RoomyQueue());
  CompletionQueue& queue = queues_[sitter->queue];
  ++queue.taken;
  const uint32_t serial = next_serial_++;
  sitters_.emplace(serial, std::move(sitter));
  return Seat{.queue = queue.queue, .serial = serial};
}

void RdmaDevice::LeaveSeat(const Seat& seat) {
  std::shared_ptr<Sitter> gone;  // dies after the lock is gone
  std::lock_guard lock(mutex_);
  const auto found = sitters_.find(seat.serial);
  if (found == sitters_.end()) return;
  gone = std::move(found->second);
  --queues_[gone->queue].taken;
  sitters_.erase(found);
}

// ---- the device's thread

void RdmaDevice::Run() {
  std::array<pollfd, 3> descriptors = {pollfd{channel_->fd, POLLIN, 0}, pollfd{context_->async_fd, POLLIN, 0},
                                       pollfd{wake_, POLLIN, 0}};
  while (!stopping_) {
    if (poll(descriptors.data(), descriptors.size(), -1) < 0) continue;  // a signal
    if (descriptors[1].revents != 0) HandleAsyncEvents();
    if (descriptors[0].revents != 0) HandleCompletionEvents();
    for (pollfd& descriptor : descriptors) {
      // Of a device that was taken out: it would be ready for ever.
      if ((descriptor.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) descriptor.fd = -1;
    }
  }
}

void RdmaDevice::HandleCompletionEvents() {
  std::vector<ibv_cq*> ready;
  ibv_cq* queue = nullptr;
  void* cookie = nullptr;
  while (verbs_.get_cq_event(channel_, &queue, &cookie) == 0) {
    verbs_.ack_cq_events(queue, 1);
    if (std::ranges::find(ready, queue) == ready.end()) ready.push_back(queue);
  }
  while (!ready.empty() && !stopping_) {
    // A queue is armed when it has been emptied, and looked at once more: what came in between makes no event.
    std::erase_if(ready, [this](ibv_cq* emptied) {
      if (!Drain(emptied)) return false;
      (void)ibv_req_notify_cq(emptied, 0);  // fails when the device is lost, of which an event tells
      return Drain(emptied);
    });
    if (!ready.empty()) HandleAsyncEvents();
  }
}

// False when there may be more.
bool RdmaDevice::Drain(ibv_cq* queue) {
  std::array<ibv_wc, kBatch> completions;
  for (int round = 0; round < kBatchesPerRound; ++round) {
    const int count = ibv_poll_cq(queue, kBatch, completions.data());
    if (count <= 0) return true;
    Deliver(std::span(completions.data(), static_cast<size_t>(count)));
  }
  return false;
}

void RdmaDevice::Deliver(std::span<const ibv_wc> completions) {
  while (!completions.empty()) {
    const uint32_t serial = static_cast<uint32_t>(completions.front().wr_id >> 32);
    const auto other = std::ranges::find_if(
        completions, [serial](const ibv_wc& completion) { return (completion.wr_id >> 32) != serial; });
    const auto count = static_cast<size_t>(other - completions.begin());
    std::shared_ptr<Sitter> sitter;
    {
      std::lock_guard lock(mutex_);
      const auto found = sitters_.find(serial);
      if (found != sitters_.end()) sitter = found->second;  // else: of a queue pair that has been destroyed
    }
    if (sitter != nullptr) sitter->on_completions(completions.first(count));
    completions = completions.subspan(count);
  }
}

void RdmaDevice::HandleAsyncEvents() {
  ibv_async_event event{};
  while (verbs_.get_async_event(context_, &event) == 0) {
    const ibv_event_type type = event.event_type;
    verbs_.ack_async_event(&event);
    const bool of_port = type == IBV_EVENT_PORT_ACTIVE || type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_LID_CHANGE ||
                         type == IBV_EVENT_GID_CHANGE;
    const bool fatal = type == IBV_EVENT_DEVICE_FATAL || type == IBV_EVENT_CQ_ERR;
    if (!of_port && !fatal) continue;  // of queue pairs: their completions tell
    Result<PortState> now = QueryPort();
    PortState state;
    bool changed = fatal;
    {
      std::lock_guard lock(mutex_);
      // While a link is down its addresses may be gone; it comes back with them or with others.
      state = now ? *now : port_;
      if (!now || type == IBV_EVENT_PORT_ERR) state.active = false;
      state.failed = port_.failed || fatal;
      changed = changed || state.active != port_.active || state.lid != port_.lid || state.gid.gid != port_.gid.gid ||
                state.gid.index != port_.gid.index;
      port_ = state;
    }
    if (!changed) continue;
    log::Warn("RDMA device {}: {}", name_, EventName(type));
    on_port_change_(state);
  }
}

std::vector<int> CpusNearDevice(const std::string& device, const std::string& root) {
  std::ifstream node_file(fmt::format("{}/class/infiniband/{}/device/numa_node", root, device));
  int node = -1;
  if (!(node_file >> node) || node < 0) return {};
  std::ifstream list(fmt::format("{}/devices/system/node/node{}/cpulist", root, node));
  std::vector<int> cpus;
  int first = 0;
  while (list >> first) {  // "0-3,8,10-11"
    int last = first;
    if (list.peek() == '-') list.ignore() >> last;
    for (int cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) cpus.push_back(cpu);
    if (list.peek() == ',') list.ignore();
  }
  return cpus;
}

}  // namespace mooncake::rdma
