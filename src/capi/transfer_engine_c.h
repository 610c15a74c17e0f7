/* C interface of the transfer engine: moves bytes between registered memory of any two processes. Link with
 * -ltransfer_engine.
 *
 * Every function may be called from any thread. Nothing that is passed in is used after a call has returned, except
 * registered memory and the memory of transfers until they have ended. No call crashes on a null or stale engine,
 * batch or segment: it fails. The reason of a failure is printed on stderr (MC_LOG_LEVEL=off silences it).
 *
 * Numbers returned by int functions:
 *   memory, segments and the engine   0, or negative: -1 invalid or failed, -3 address not registered, -6 no such
 *                                     device, -7 address overlaps another region, -200 metadata or peer not found
 *   batches and transfers             0, or positive: 1 invalid argument, 2 too many requests for the batch, 3 address
 *                                     not registered, 4 batch busy, 8 no transport reaches the target, 200 metadata or
 *                                     peer not found, 999 other
 */
#ifndef TRANSFER_ENGINE_C
#define TRANSFER_ENGINE_C

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define segment_handle_t int32_t
#define segment_id_t int32_t
#define batch_id_t uint64_t
#define LOCAL_SEGMENT (0)
#define INVALID_BATCH UINT64_MAX

#define OPCODE_READ (0)  /* the target's memory -> local memory */
#define OPCODE_WRITE (1) /* local memory -> the target's memory */

#define STATUS_WAITING (0)
#define STATUS_PENDING (1)  /* never reported */
#define STATUS_INVALID (2)  /* never reported: what is invalid is refused at submission */
#define STATUS_CANCELED (3) /* never reported: this interface cannot cancel */
#define STATUS_COMPLETED (4)
#define STATUS_TIMEOUT (5) /* never reported: programs take it for success, so a time-out is STATUS_FAILED */
#define STATUS_FAILED (6)

typedef void* transfer_engine_t;
typedef void* transport_t;

struct transfer_request {
  int opcode;
  void* source; /* local memory, filled by a read and sent by a write */
  segment_id_t target_id;
  uint64_t target_offset; /* an address in the target process */
  uint64_t length;        /* bytes */
};
typedef struct transfer_request transfer_request_t;

struct transfer_status {
  int status;
  uint64_t transferred_bytes; /* of requests that completed */
};
typedef struct transfer_status transfer_status_t;

/* Texts that end with a NUL. */
struct notify_msg {
  char* name;
  char* msg;
};
typedef struct notify_msg notify_msg_t;

struct buffer_entry {
  void* addr;
  size_t length;
};
typedef struct buffer_entry buffer_entry_t;

/* Opens an engine, or NULL. metadata_conn_string: "P2PHANDSHAKE", or a server as "http://host:port/metadata",
 * "etcd://host:port", "redis://host:port". local_server_name: "host", "host:port", or any name with a server.
 * ip_or_host_name and rpc_port: the address to bind and the port, but only with MC_LEGACY_RPC_PORT_BINDING=1; else a
 * free port is taken unless local_server_name has one.
 * auto_discover: accepted; every transport that can be had is installed either way. */
transfer_engine_t createTransferEngine(const char* metadata_conn_string, const char* local_server_name,
                                       const char* ip_or_host_name, uint64_t rpc_port, int auto_discover);
/* Ends all transfers and registrations. No other call may be under way on it. */
void destroyTransferEngine(transfer_engine_t engine);
/* The name under which peers open it, with a NUL; -1 when buf_len is too small. */
int getLocalIpAndPort(transfer_engine_t engine, char* buf_out, size_t buf_len);
/* Devices near each location as JSON, with a NUL; -1 when buf_len is too small. */
int discoverTopology(transfer_engine_t engine, char* buf_out, size_t buf_len);

/* A handle of a transport that the engine has ("tcp", "rdma", "shm", "local"), or NULL. Where there is no rdma device
 * it is that of tcp, unless MC_STRICT_PROTOCOL=1. args is NULL, or args[0] is a topology as discoverTopology writes it:
 * it is checked, and the engine keeps its own (MC_CUSTOM_TOPO_JSON sets it). */
transport_t installTransport(transfer_engine_t engine, const char* proto, void** args);
/* Does nothing. */
int uninstallTransport(transfer_engine_t engine, const char* proto);

/* A peer's segment: "host:port", or its name with a metadata server. Negative: nobody answers to it.
 * The second form asks the peer again even when it is known. */
segment_id_t openSegment(transfer_engine_t engine, const char* segment_name);
segment_id_t openSegmentNoCache(transfer_engine_t engine, const char* segment_name);
int closeSegment(transfer_engine_t engine, segment_id_t segment_id);
/* Does nothing but check the name: the segment is gone when the engine is. */
int removeLocalSegment(transfer_engine_t engine, const char* segment_name);
/* Asks all peers in use for their descriptors again. */
int syncSegmentCache(transfer_engine_t engine);

/* location: "*", "cpu:N", "npu:N". remote_accessible 0: peers cannot reach it. */
int registerLocalMemory(transfer_engine_t engine, void* addr, size_t length, const char* location,
                        int remote_accessible);
/* Waits for the transfers that use it. */
int unregisterLocalMemory(transfer_engine_t engine, void* addr);
/* All or nothing. */
int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t* buffer_list, size_t buffer_len,
                             const char* location);
int unregisterLocalMemoryBatch(transfer_engine_t engine, void** addr_list, size_t addr_len);

/* A batch for up to batch_size requests, or INVALID_BATCH. */
batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size);
/* All of the requests or none. They are tasks 0, 1, ... of the batch, in order of submission. */
int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request* entries, size_t count);
/* The message reaches each target after all of the data did. */
int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request* entries,
                             size_t count, notify_msg_t notify_msg);
int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id, struct transfer_status* status);
/* STATUS_WAITING while any task is; STATUS_FAILED when one failed. */
int getBatchTransferStatus(transfer_engine_t engine, batch_id_t batch_id, struct transfer_status* status);
/* 4 while a task has not ended. */
int freeBatchID(transfer_engine_t engine, batch_id_t batch_id);

/* Messages received since the last call; *size says how many. NULL when there are none. To be freed with
 * freeNotifsMsgBuf. */
notify_msg_t* getNotifsFromEngine(transfer_engine_t engine, int* size);
int freeNotifsMsgBuf(notify_msg_t* msg, int size);
/* Sends a message now. Waits for the answer. */
int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg);

#ifdef __cplusplus
}
#endif

#endif /* TRANSFER_ENGINE_C */
