/* Side API of the ACL emulator, for tests. Never link against it: real CANN does not have it. Find each function with
 * dlsym(RTLD_DEFAULT, "aclemu_...") or in the handle of the loaded library, and skip the test when it is absent.
 * Every function may be called from any thread, before aclInit too. */
#ifndef ACLEMU_H_
#define ACLEMU_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ACLEMU_STATS_VERSION 2U

/* Index of the four-element arrays: the direction of a copy. */
enum { ACLEMU_H2H = 0, ACLEMU_H2D = 1, ACLEMU_D2H = 2, ACLEMU_D2D = 3 };

/* Counts since start or the last aclemu_reset_stats; the fields named live and peak are never reset to less than what
 * lives. New fields are only ever added at the end, with a new version. */
typedef struct aclemu_stats {
  uint32_t version;      /* in: ACLEMU_STATS_VERSION */
  uint32_t struct_bytes; /* in: sizeof(aclemu_stats) */
  uint64_t device_allocs;
  uint64_t device_allocs_failed;
  uint64_t device_frees;
  uint64_t device_live_blocks;
  uint64_t device_live_bytes;  /* as asked for */
  uint64_t device_paged_bytes; /* as taken from the HBM */
  uint64_t device_peak_paged_bytes;
  uint64_t host_allocs; /* aclrtMallocHost */
  uint64_t host_frees;
  uint64_t host_live_blocks; /* aclrtMallocHost and registered ranges */
  uint64_t host_live_bytes;
  uint64_t host_registers;
  uint64_t host_unregisters;
  uint64_t sync_copies[4];
  uint64_t sync_bytes[4];
  uint64_t async_copies[4]; /* counted when they run */
  uint64_t async_bytes[4];
  uint64_t memsets;
  uint64_t pageable_copies;          /* synchronous copies with an unregistered host end */
  uint64_t pageable_async_fallbacks; /* asynchronous calls that became synchronous (ACLEMU_PAGEABLE=sync) */
  uint64_t set_device_calls;
  uint64_t set_device_switches;
  uint64_t streams_created;
  uint64_t streams_live; /* without default streams */
  uint64_t events_created;
  uint64_t events_live;
  uint64_t submits_blocked; /* submits that found the queue full */
  uint64_t synchronizes;    /* stream, event and device waits */
  uint64_t violations;
  uint64_t faults_fired;
  /* since version 2 */
  uint64_t submit_blocked_ns; /* spent waiting for room in full queues */
  uint64_t waited_ns;         /* spent in synchronize calls, real time */
} aclemu_stats;

/* 0, or -1 when the version is not known or struct_bytes does not fit it. */
int aclemu_get_stats(aclemu_stats* out);
void aclemu_reset_stats(void);

/* Live blocks of aclrtMalloc on one device, or on all with -1. */
int64_t aclemu_live_allocs(int32_t device);

/* Read or write device bytes without any rule, count or stream. 0, or -1 when the range is not inside one live block.
 */
int aclemu_peek(const void* device_ptr, void* host, size_t bytes);
int aclemu_poke(void* device_ptr, const void* host, size_t bytes);

typedef enum aclemu_class {
  ACLEMU_CLASS_PAGEABLE = 0,   /* any address the emulator does not know */
  ACLEMU_CLASS_PINNED = 1,     /* aclrtMallocHost: a NIC or O_DIRECT cannot pin it */
  ACLEMU_CLASS_REGISTERED = 2, /* aclrtHostRegister(V2): a NIC can pin it */
  ACLEMU_CLASS_DEVICE = 3,
  ACLEMU_CLASS_DEAD_DEVICE = 4 /* device address range, no live block there */
} aclemu_class;
int aclemu_ptr_class(const void* ptr);

/* Adds fault rules in the form of ACLEMU_FAULT or of the array "faults" of ACLEMU_CONFIG; "" removes all rules and ends
 * all hangs. 0, or -1 when the text cannot be parsed; nothing is added then. */
int aclemu_inject(const char* rules);

/* Not 0: as if a stream of this process recorded a graph, in the mode that forbids others what is synchronous. */
void aclemu_set_capture(int on);

/* Name of the profile in force: "8.1", "master", "strictest" ... */
const char* aclemu_profile(void);

/* Calls of one ACL function since start or the last aclemu_reset_stats, failed ones too: the n of "name@n" for its last
 * call. "any" counts all functions. UINT64_MAX when there is no such function. */
uint64_t aclemu_calls(const char* name);

/* ACLEMU_SCHED=manual: runs the next task of the stream, or with NULL of the first stream that can run one. 1 when a
 * task ran, 0 when there was none that could, -1 when the mode or the stream is wrong. */
int aclemu_step(void* stream);

/* The clock of the time model in ns: CLOCK_MONOTONIC, or the virtual one. */
uint64_t aclemu_model_now_ns(void);
/* A parameter of the time model in force, e.g. "h2d_gbps" (10^9 bytes per second) or "malloc_small_us";
 * docs/emulator.md lists them. Negative when there is none of that name. */
double aclemu_model_param(const char* name);

#ifdef __cplusplus
}
#endif

#endif /* ACLEMU_H_ */
