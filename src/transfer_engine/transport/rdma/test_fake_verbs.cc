// The functions behind the fake devices.
#include "transfer_engine/transport/rdma/test_fake_verbs.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace mooncake::rdma {
namespace {

FakeFabric* fabric = nullptr;

uint64_t TakeCount(int descriptor) {
  uint64_t count = 0;
  return read(descriptor, &count, sizeof(count)) == sizeof(count) ? count : 0;
}

void Raise(int descriptor) {
  const uint64_t one = 1;
  MC_CHECK(write(descriptor, &one, sizeof(one)) == sizeof(one), "eventfd {}", descriptor);
}

}  // namespace

struct FakeFabric::Device {
  ibv_device device{};
  size_t index = 0;
  std::string name;
  bool active = true;
  bool swallow = false;
  ibv_wc_status fail_status = IBV_WC_SUCCESS;
  int fail_count = 0;
  int refuse_posts = 0;
  uint64_t bytes = 0;
};

struct FakeFabric::Channel {
  ibv_comp_channel channel{};
  std::deque<ibv_cq*> events;
};

struct FakeFabric::Queue {
  ibv_cq cq{};
  Channel* channel = nullptr;
  bool armed = false;
  std::deque<ibv_wc> completions;
};

struct FakeFabric::Pair {
  ibv_qp qp{};
  Device* device = nullptr;
  Queue* queue = nullptr;
  ibv_qp_state state = IBV_QPS_RESET;
  uint32_t peer = 0;
  struct Held {
    ibv_send_wr request;
    ibv_sge element;
  };
  std::deque<Held> held;
};

// Under the fabric's lock, all of them.
struct FakeCalls {
  using Device = FakeFabric::Device;
  using Channel = FakeFabric::Channel;
  using Queue = FakeFabric::Queue;
  using Pair = FakeFabric::Pair;
  using Lock = std::lock_guard<std::mutex>;

  template <typename T, typename Member>
  static T* Outer(Member* member) {
    return reinterpret_cast<T*>(member);  // the member is the first
  }
  static Device* DeviceOf(const ibv_context* context) { return Outer<Device>(context->device); }

  static ibv_device** GetDeviceList(int* count) {
    Lock lock(fabric->mutex_);
    auto** list = new ibv_device*[fabric->devices_.size() + 1]();
    for (size_t i = 0; i < fabric->devices_.size(); ++i) list[i] = &fabric->devices_[i]->device;
    *count = static_cast<int>(fabric->devices_.size());
    return list;
  }
  static void FreeDeviceList(ibv_device** list) { delete[] list; }
  static const char* GetDeviceName(ibv_device* device) { return Outer<Device>(device)->name.c_str(); }
  static ibv_context* OpenDevice(ibv_device* device) {
    auto* context = new ibv_context{};
    context->device = device;
    context->ops.poll_cq = PollCq;
    context->ops.req_notify_cq = RequestNotify;
    context->ops.post_send = PostSend;
    context->async_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
    Lock lock(fabric->mutex_);
    fabric->contexts_.insert(context);
    return context;
  }
  static int CloseDevice(ibv_context* context) {
    Lock lock(fabric->mutex_);
    fabric->contexts_.erase(context);
    fabric->events_.erase(context);
    close(context->async_fd);
    delete context;
    return 0;
  }
  static int QueryDevice(ibv_context*, ibv_device_attr* attributes) {
    *attributes = {};
    attributes->max_mr_size = fabric->max_mr_bytes_;
    attributes->max_qp_wr = 1024;
    attributes->max_cqe = 32767;
    attributes->max_qp_rd_atom = 128;
    attributes->max_qp_init_rd_atom = 128;
    return 0;
  }
  static int QueryPort(ibv_context* context, uint8_t, ibv_port_attr* attributes) {
    Lock lock(fabric->mutex_);
    *attributes = {};
    attributes->state = DeviceOf(context)->active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    attributes->active_mtu = IBV_MTU_4096;
    attributes->gid_tbl_len = 1;
    attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
    return 0;
  }
  static int QueryGid(ibv_context* context, uint32_t, uint32_t index, ibv_gid_entry* entry) {
    if (index > 0) return ENODATA;
    *entry = {};
    entry->gid_type = IBV_GID_TYPE_ROCE_V2;
    const auto subnet = static_cast<uint8_t>(DeviceOf(context)->index / 2);
    const auto host = static_cast<uint8_t>(DeviceOf(context)->index % 2 + 1);
    const uint8_t raw[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, subnet, host};
    std::memcpy(entry->gid.raw, raw, sizeof(raw));
    return 0;
  }
  static ibv_pd* AllocPd(ibv_context* context) {
    auto* pd = new ibv_pd{};
    pd->context = context;
    return pd;
  }
  static int DeallocPd(ibv_pd* pd) {
    delete pd;
    return 0;
  }
  static ibv_mr* RegMr(ibv_pd* pd, void* address, size_t length, uint64_t, unsigned access) {
    Lock lock(fabric->mutex_);
    if (fabric->fail_registrations_ == 0) {
      errno = fabric->registration_error_;
      return nullptr;
    }
    if (fabric->fail_registrations_ > 0) --fabric->fail_registrations_;
    const uint32_t key = fabric->next_number_++;
    auto* mr = new ibv_mr{pd->context, pd, address, length, 0, key, key};
    fabric->mrs_[key] = mr;
    fabric->access_[key] = access;
    return mr;
  }
  static int DeregMr(ibv_mr* mr) {
    Lock lock(fabric->mutex_);
    fabric->mrs_.erase(mr->lkey);
    delete mr;
    return 0;
  }
  static ibv_comp_channel* CreateChannel(ibv_context* context) {
    auto* channel = new Channel;
    channel->channel.context = context;
    channel->channel.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
    return &channel->channel;
  }
  static int DestroyChannel(ibv_comp_channel* channel) {
    close(channel->fd);
    delete Outer<Channel>(channel);
    return 0;
  }
  static ibv_cq* CreateCq(ibv_context* context, int, void*, ibv_comp_channel* channel, int) {
    auto* queue = new Queue;
    queue->cq.context = context;
    queue->channel = channel == nullptr ? nullptr : Outer<Channel>(channel);
    return &queue->cq;
  }
  static int DestroyCq(ibv_cq* cq) {
    delete Outer<Queue>(cq);
    return 0;
  }
  static int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq, void**) {
    if (TakeCount(channel->fd) == 0) return -1;
    Lock lock(fabric->mutex_);
    auto& events = Outer<Channel>(channel)->events;
    *cq = events.front();
    events.pop_front();
    return 0;
  }
  static void AckCqEvents(ibv_cq*, unsigned) {}
  static ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
    Lock lock(fabric->mutex_);
    auto* pair = new Pair;
    pair->qp.context = pd->context;
    pair->qp.qp_num = fabric->next_number_++;
    pair->device = DeviceOf(pd->context);
    pair->queue = Outer<Queue>(attributes->send_cq);
    fabric->pairs_[pair->qp.qp_num] = pair;
    return &pair->qp;
  }
  static int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
    Lock lock(fabric->mutex_);
    auto* pair = Outer<Pair>(qp);
    if ((mask & IBV_QP_STATE) == 0) return EINVAL;
    if (attributes->qp_state == IBV_QPS_RTR) {
      if (fabric->fail_connections_) return EINVAL;
      pair->peer = attributes->dest_qp_num;
    }
    pair->state = attributes->qp_state;
    if (pair->state == IBV_QPS_ERR) fabric->Break(*pair);
    return 0;
  }
  static int DestroyQp(ibv_qp* qp) {
    Lock lock(fabric->mutex_);
    fabric->pairs_.erase(qp->qp_num);
    delete Outer<Pair>(qp);
    return 0;
  }
  static int GetAsyncEvent(ibv_context* context, ibv_async_event* event) {
    if (TakeCount(context->async_fd) == 0) return -1;
    Lock lock(fabric->mutex_);
    *event = {};
    event->event_type = fabric->events_[context].front();
    fabric->events_[context].pop_front();
    return 0;
  }
  static void AckAsyncEvent(ibv_async_event*) {}

  static int PollCq(ibv_cq* cq, int limit, ibv_wc* completions) {
    Lock lock(fabric->mutex_);
    auto& queue = Outer<Queue>(cq)->completions;
    int count = 0;
    for (; count < limit && !queue.empty(); ++count) {
      completions[count] = queue.front();
      queue.pop_front();
    }
    return count;
  }
  static int RequestNotify(ibv_cq* cq, int) {
    Lock lock(fabric->mutex_);
    Outer<Queue>(cq)->armed = true;
    return 0;
  }
  static int PostSend(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** refused) {
    Lock lock(fabric->mutex_);
    auto* pair = Outer<Pair>(qp);
    ++fabric->posts_;
    for (; request != nullptr; request = request->next) {
      if (pair->device->refuse_posts > 0) {
        --pair->device->refuse_posts;
        *refused = request;
        return ENOMEM;
      }
      ++fabric->requests_;
      const ibv_sge element = *request->sg_list;
      fabric->largest_request_ = std::max<size_t>(fabric->largest_request_, element.length);
      if (pair->state == IBV_QPS_ERR) {
        fabric->Complete(*pair, *request, IBV_WC_WR_FLUSH_ERR);
      } else if (fabric->hold_ || pair->device->swallow) {
        pair->held.push_back({*request, element});
        if (pair->device->swallow && request->opcode == IBV_WR_RDMA_WRITE) {
          const auto* bytes = reinterpret_cast<const std::byte*>(element.addr);
          fabric->late_.push_back({.peer = pair->peer,
                                   .address = request->wr.rdma.remote_addr,
                                   .key = request->wr.rdma.rkey,
                                   .bytes = {bytes, bytes + element.length}});
        }
      } else {
        fabric->Execute(*pair, *request, element);
      }
    }
    return 0;
  }
};

FakeFabric::FakeFabric(size_t devices) {
  MC_CHECK(fabric == nullptr, "two fake fabrics");
  fabric = this;
  for (size_t i = 0; i < devices; ++i) {
    auto device = std::make_unique<Device>();
    device->index = i;
    device->name = fmt::format("fake{}", i);
    devices_.push_back(std::move(device));
  }
  verbs_ = {.get_device_list = FakeCalls::GetDeviceList,
            .free_device_list = FakeCalls::FreeDeviceList,
            .get_device_name = FakeCalls::GetDeviceName,
            .open_device = FakeCalls::OpenDevice,
            .close_device = FakeCalls::CloseDevice,
            .query_device = FakeCalls::QueryDevice,
            .query_port = FakeCalls::QueryPort,
            .query_gid_entry = FakeCalls::QueryGid,
            .alloc_pd = FakeCalls::AllocPd,
            .dealloc_pd = FakeCalls::DeallocPd,
            .reg_mr = FakeCalls::RegMr,
            .dereg_mr = FakeCalls::DeregMr,
            .create_comp_channel = FakeCalls::CreateChannel,
            .destroy_comp_channel = FakeCalls::DestroyChannel,
            .create_cq = FakeCalls::CreateCq,
            .destroy_cq = FakeCalls::DestroyCq,
            .get_cq_event = FakeCalls::GetCqEvent,
            .ack_cq_events = FakeCalls::AckCqEvents,
            .create_qp = FakeCalls::CreateQp,
            .modify_qp = FakeCalls::ModifyQp,
            .destroy_qp = FakeCalls::DestroyQp,
            .get_async_event = FakeCalls::GetAsyncEvent,
            .ack_async_event = FakeCalls::AckAsyncEvent};
}

FakeFabric::~FakeFabric() {
  MC_CHECK(pairs_.empty() && mrs_.empty() && contexts_.empty(), "{} queue pairs, {} registrations, {} devices left",
           pairs_.size(), mrs_.size(), contexts_.size());
  fabric = nullptr;
}

FakeFabric::Pair* FakeFabric::Find(uint32_t number) {
  const auto found = pairs_.find(number);
  return found == pairs_.end() ? nullptr : found->second;
}

void FakeFabric::Complete(Pair& pair, const ibv_send_wr& request, ibv_wc_status status) {
  if (status == IBV_WC_SUCCESS && (request.send_flags & IBV_SEND_SIGNALED) == 0) return;
  Queue& queue = *pair.queue;
  ibv_wc completion{};
  completion.wr_id = request.wr_id;
  completion.status = status;
  completion.qp_num = pair.qp.qp_num;
  queue.completions.push_back(completion);
  if (queue.channel == nullptr || !std::exchange(queue.armed, false)) return;
  queue.channel->events.push_back(&queue.cq);
  Raise(queue.channel->channel.fd);
}

void FakeFabric::Break(Pair& pair) {
  pair.state = IBV_QPS_ERR;
  for (const Pair::Held& held : std::exchange(pair.held, {})) {
    if (!pair.device->swallow) Complete(pair, held.request, IBV_WC_WR_FLUSH_ERR);
  }
}

bool FakeFabric::Covers(uint32_t key, uint64_t address, uint64_t length, unsigned access) const {
  const auto mr = mrs_.find(key);
  if (mr == mrs_.end() || (access_.at(key) & access) != access) return false;
  const auto start = reinterpret_cast<uint64_t>(mr->second->addr);
  return address >= start && address + length <= start + mr->second->length;
}

void FakeFabric::DeliverSwallowed() {
  std::lock_guard lock(mutex_);
  for (const Late& late : std::exchange(late_, {})) {
    const Pair* peer = Find(late.peer);
    if (peer == nullptr || (peer->state != IBV_QPS_RTR && peer->state != IBV_QPS_RTS)) continue;
    if (!Covers(late.key, late.address, late.bytes.size(), IBV_ACCESS_REMOTE_WRITE)) continue;
    std::memcpy(reinterpret_cast<void*>(late.address), late.bytes.data(), late.bytes.size());
  }
}

void FakeFabric::Execute(Pair& pair, const ibv_send_wr& request, const ibv_sge& element) {
  const auto fail = [&](ibv_wc_status status) {
    Complete(pair, request, status);
    Break(pair);
  };
  if (pair.state == IBV_QPS_ERR) return Complete(pair, request, IBV_WC_WR_FLUSH_ERR);
  if (pair.device->fail_count > 0) {
    --pair.device->fail_count;
    return fail(pair.device->fail_status);
  }
  const Pair* peer = Find(pair.peer);
  const bool receives = peer != nullptr && (peer->state == IBV_QPS_RTR || peer->state == IBV_QPS_RTS);
  if (!receives || !peer->device->active || !pair.device->active) return fail(IBV_WC_RETRY_EXC_ERR);
  const bool reads = request.opcode == IBV_WR_RDMA_READ;
  if (!Covers(element.lkey, element.addr, element.length, reads ? IBV_ACCESS_LOCAL_WRITE : 0))
    return fail(IBV_WC_LOC_PROT_ERR);
  if (!Covers(request.wr.rdma.rkey, request.wr.rdma.remote_addr, element.length,
              reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE)) {
    return fail(IBV_WC_REM_ACCESS_ERR);
  }
  auto* local = reinterpret_cast<void*>(element.addr);
  auto* remote = reinterpret_cast<void*>(request.wr.rdma.remote_addr);
  std::memcpy(reads ? local : remote, reads ? remote : local, element.length);
  pair.device->bytes += element.length;
  Complete(pair, request, IBV_WC_SUCCESS);
}

void FakeFabric::Hold(bool hold) {
  std::lock_guard lock(mutex_);
  hold_ = hold;
  if (hold) return;
  for (auto& [number, pair] : pairs_) {
    if (pair->device->swallow) continue;
    for (const Pair::Held& held : std::exchange(pair->held, {})) Execute(*pair, held.request, held.element);
  }
}

void FakeFabric::Swallow(size_t device, bool swallow) {
  std::lock_guard lock(mutex_);
  devices_[device]->swallow = swallow;
}

void FakeFabric::FailRequests(size_t device, ibv_wc_status status, int count) {
  std::lock_guard lock(mutex_);
  devices_[device]->fail_status = status;
  devices_[device]->fail_count = count;
}

void FakeFabric::RefusePosts(size_t device, int count) {
  std::lock_guard lock(mutex_);
  devices_[device]->refuse_posts = count;
}

void FakeFabric::FailRegistrations(int from, int error) {
  std::lock_guard lock(mutex_);
  fail_registrations_ = from;
  registration_error_ = error;
}

void FakeFabric::FailConnections(bool fail) {
  std::lock_guard lock(mutex_);
  fail_connections_ = fail;
}

void FakeFabric::SetPort(size_t device, bool active) {
  std::lock_guard lock(mutex_);
  devices_[device]->active = active;
  for (ibv_context* context : contexts_) {
    if (context->device != &devices_[device]->device) continue;
    events_[context].push_back(active ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
    Raise(context->async_fd);
  }
}

size_t FakeFabric::queue_pairs() {
  std::lock_guard lock(mutex_);
  return pairs_.size();
}
size_t FakeFabric::registrations() {
  std::lock_guard lock(mutex_);
  return mrs_.size();
}
size_t FakeFabric::held() {
  std::lock_guard lock(mutex_);
  size_t held = 0;
  for (const auto& [number, pair] : pairs_) held += pair->held.size();
  return held;
}
uint64_t FakeFabric::bytes(size_t device) {
  std::lock_guard lock(mutex_);
  return devices_[device]->bytes;
}
size_t FakeFabric::largest_request() {
  std::lock_guard lock(mutex_);
  return largest_request_;
}
size_t FakeFabric::posts() {
  std::lock_guard lock(mutex_);
  return posts_;
}
size_t FakeFabric::requests() {
  std::lock_guard lock(mutex_);
  return requests_;
}

}  // namespace mooncake::rdma
