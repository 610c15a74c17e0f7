// libibverbs as a table of functions, filled at run time, so that one binary serves hosts with and without it.
#pragma once

#include <infiniband/verbs.h>

#include "common/status.h"

namespace mooncake::rdma {

// Posting, polling and arming a completion queue go through the tables of the opened device and are not here.
struct Verbs {
  ibv_device** (*get_device_list)(int* count) = nullptr;
  void (*free_device_list)(ibv_device** list) = nullptr;
  const char* (*get_device_name)(ibv_device* device) = nullptr;
  ibv_context* (*open_device)(ibv_device* device) = nullptr;
  int (*close_device)(ibv_context* context) = nullptr;
  int (*query_device)(ibv_context* context, ibv_device_attr* attributes) = nullptr;
  int (*query_port)(ibv_context* context, uint8_t port, ibv_port_attr* attributes) = nullptr;
  int (*query_gid_entry)(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry) = nullptr;
  ibv_pd* (*alloc_pd)(ibv_context* context) = nullptr;
  int (*dealloc_pd)(ibv_pd* pd) = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* address, size_t length, uint64_t io_address, unsigned access) = nullptr;
  int (*dereg_mr)(ibv_mr* mr) = nullptr;
  ibv_comp_channel* (*create_comp_channel)(ibv_context* context) = nullptr;
  int (*destroy_comp_channel)(ibv_comp_channel* channel) = nullptr;
  ibv_cq* (*create_cq)(ibv_context* context, int entries, void* cookie, ibv_comp_channel* channel,
                       int vector) = nullptr;
  int (*destroy_cq)(ibv_cq* cq) = nullptr;
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** cq, void** cookie) = nullptr;
  void (*ack_cq_events)(ibv_cq* cq, unsigned count) = nullptr;
  ibv_qp* (*create_qp)(ibv_pd* pd, ibv_qp_init_attr* attributes) = nullptr;
  int (*modify_qp)(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = nullptr;
  int (*destroy_qp)(ibv_qp* qp) = nullptr;
  int (*get_async_event)(ibv_context* context, ibv_async_event* event) = nullptr;
  void (*ack_async_event)(ibv_async_event* event) = nullptr;
};

// libibverbs.so.1, loaded once and never unloaded: providers keep state of their own. NOT_SUPPORTED_TRANSPORT says what
// was looked for and why it cannot be used. Any thread.
Result<const Verbs*> LoadVerbs();

// "remote access error"; the numbers are those of work completions.
const char* CompletionName(ibv_wc_status status);
const char* EventName(ibv_event_type event);

}  // namespace mooncake::rdma
