// dlopen and dlsym of libibverbs.
#include "transfer_engine/transport/rdma/verbs_library.h"

#include <dlfcn.h>

#include <string>

// The header redirects these names to inline functions and compatibility symbols.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_get_device_list

namespace mooncake::rdma {
namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

// Functions whose exported form differs from what the header offers.
int (*exported_query_port)(ibv_context*, uint8_t, void*) = nullptr;
int (*exported_query_gid_ex)(ibv_context*, uint32_t, uint32_t, ibv_gid_entry*, uint32_t, size_t) = nullptr;

// The exported function fills an older, shorter structure; providers offer the full one.
int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
  *attributes = {};
  verbs_context* extended = verbs_get_ctx_op(context, query_port);
  if (extended == nullptr) return exported_query_port(context, port, attributes);
  return extended->query_port(context, port, attributes, sizeof(*attributes));
}

int QueryGidEntry(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry) {
  return exported_query_gid_ex(context, port, index, entry, 0, sizeof(*entry));
}

template <typename Function>
void Resolve(void* library, const char* symbol, Function& slot, std::string& missing) {
  slot = reinterpret_cast<Function>(dlsym(library, symbol));
  if (slot == nullptr) missing += missing.empty() ? symbol : fmt::format(", {}", symbol);
}

Result<Verbs> Load() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return Error(ErrorCode::NOT_SUPPORTED_TRANSPORT, "RDMA needs {} (package libibverbs1 or rdma-core): {}", kLibrary,
                 why != nullptr ? why : "cannot be loaded");
  }
  Verbs verbs{.query_port = QueryPort, .query_gid_entry = QueryGidEntry};
  std::string missing;
  Resolve(library, "ibv_get_device_list", verbs.get_device_list, missing);
  Resolve(library, "ibv_free_device_list", verbs.free_device_list, missing);
  Resolve(library, "ibv_get_device_name", verbs.get_device_name, missing);
  Resolve(library, "ibv_open_device", verbs.open_device, missing);
  Resolve(library, "ibv_close_device", verbs.close_device, missing);
  Resolve(library, "ibv_query_device", verbs.query_device, missing);
  Resolve(library, "ibv_query_port", exported_query_port, missing);
  Resolve(library, "_ibv_query_gid_ex", exported_query_gid_ex, missing);
  Resolve(library, "ibv_alloc_pd", verbs.alloc_pd, missing);
  Resolve(library, "ibv_dealloc_pd", verbs.dealloc_pd, missing);
  Resolve(library, "ibv_reg_mr_iova2", verbs.reg_mr, missing);
  Resolve(library, "ibv_dereg_mr", verbs.dereg_mr, missing);
  Resolve(library, "ibv_create_comp_channel", verbs.create_comp_channel, missing);
  Resolve(library, "ibv_destroy_comp_channel", verbs.destroy_comp_channel, missing);
  Resolve(library, "ibv_create_cq", verbs.create_cq, missing);
  Resolve(library, "ibv_destroy_cq", verbs.destroy_cq, missing);
  Resolve(library, "ibv_get_cq_event", verbs.get_cq_event, missing);
  Resolve(library, "ibv_ack_cq_events", verbs.ack_cq_events, missing);
  Resolve(library, "ibv_create_qp", verbs.create_qp, missing);
  Resolve(library, "ibv_modify_qp", verbs.modify_qp, missing);
  Resolve(library, "ibv_destroy_qp", verbs.destroy_qp, missing);
  Resolve(library, "ibv_get_async_event", verbs.get_async_event, missing);
  Resolve(library, "ibv_ack_async_event", verbs.ack_async_event, missing);
  if (!missing.empty()) {
    return Error(ErrorCode::NOT_SUPPORTED_TRANSPORT, "{} is too old for RDMA, it lacks {}: rdma-core 34 or newer",
                 kLibrary, missing);
  }
  return verbs;
}

}  // namespace

Result<const Verbs*> LoadVerbs() {
  static const Result<Verbs> loaded = Load();
  if (!loaded) return std::unexpected(loaded.error());
  return &*loaded;
}

const char* CompletionName(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_LEN_ERR:
      return "local length error";
    case IBV_WC_LOC_QP_OP_ERR:
      return "local queue error";
    case IBV_WC_LOC_PROT_ERR:
      return "local protection error";
    case IBV_WC_WR_FLUSH_ERR:
      return "flushed";
    case IBV_WC_LOC_ACCESS_ERR:
      return "local access error";
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer found the request invalid";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer refused the access";
    case IBV_WC_REM_OP_ERR:
      return "the peer could not carry it out";
    case IBV_WC_RETRY_EXC_ERR:
      return "no acknowledgement from the peer's device";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer's queue was not ready";
    case IBV_WC_FATAL_ERR:
      return "fatal error of the device";
    case IBV_WC_RESP_TIMEOUT_ERR:
      return "no response in time";
    default:
      return "error of the device";
  }
}

const char* EventName(ibv_event_type event) {
  switch (event) {
    case IBV_EVENT_PORT_ACTIVE:
      return "port active";
    case IBV_EVENT_PORT_ERR:
      return "port down";
    case IBV_EVENT_LID_CHANGE:
      return "LID changed";
    case IBV_EVENT_GID_CHANGE:
      return "GID table changed";
    case IBV_EVENT_DEVICE_FATAL:
      return "device failed";
    case IBV_EVENT_CQ_ERR:
      return "completion queue overrun";
    case IBV_EVENT_QP_FATAL:
      return "queue pair failed";
    default:
      return "event";
  }
}

}  // namespace mooncake::rdma
