/* Moves bytes into the memory of another process and back, with the C interface. The parent offers memory, the child
 * writes to it and reads it again.
 *
 * cc examples/transfer_example.c -Isrc/capi -Lbuild/release/lib -Wl,-rpath,build/release/lib -ltransfer_engine
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <transfer_engine_c.h>
#include <unistd.h>

enum { kBytes = 1 << 20, kNameBytes = 64 };

static const char kText[] = "hello from another process";

struct Address {
  char name[kNameBytes]; /* of the segment */
  uint64_t memory;
};

static void fail(const char *what) {
  fprintf(stderr, "transfer_example: %s failed\n", what);
  exit(1);
}

static transfer_engine_t open_engine(void) {
  transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
  if (engine == NULL) fail("createTransferEngine");
  return engine;
}

static void transfer(transfer_engine_t engine, int opcode, char *local, segment_id_t peer, uint64_t remote) {
  const batch_id_t batch = allocateBatchID(engine, 1);
  struct transfer_request request = {opcode, local, peer, remote, kBytes};
  struct transfer_status status = {STATUS_WAITING, 0};
  if (batch == INVALID_BATCH) fail("allocateBatchID");
  if (submitTransfer(engine, batch, &request, 1) != 0) fail("submitTransfer");
  while (status.status == STATUS_WAITING) {
    if (getTransferStatus(engine, batch, 0, &status) != 0) fail("getTransferStatus");
  }
  if (status.status != STATUS_COMPLETED || status.transferred_bytes != kBytes) fail("the transfer");
  if (freeBatchID(engine, batch) != 0) fail("freeBatchID");
}

static int write_and_read(int from_parent) {
  struct Address peer;
  if (read(from_parent, &peer, sizeof(peer)) != (ssize_t)sizeof(peer)) return 1;
  transfer_engine_t engine = open_engine();
  char *const sent = calloc(1, kBytes);
  char *const back = calloc(1, kBytes);
  if (registerLocalMemory(engine, sent, kBytes, "*", 1) != 0) fail("registerLocalMemory");
  if (registerLocalMemory(engine, back, kBytes, "*", 1) != 0) fail("registerLocalMemory");
  const segment_id_t segment = openSegment(engine, peer.name);
  if (segment < 0) fail("openSegment");
  memcpy(sent + kBytes - sizeof(kText), kText, sizeof(kText));
  transfer(engine, OPCODE_WRITE, sent, segment, peer.memory);
  transfer(engine, OPCODE_READ, back, segment, peer.memory);
  if (memcmp(sent, back, kBytes) != 0) fail("comparing what came back");
  notify_msg_t done = {"child", "written"};
  if (genNotifyInEngine(engine, (uint64_t)segment, done) != 0) fail("genNotifyInEngine");
  closeSegment(engine, segment);
  destroyTransferEngine(engine);
  free(sent);
  free(back);
  return 0;
}

int main(void) {
  int to_child[2];
  if (pipe(to_child) != 0) fail("pipe");
  const pid_t child = fork(); /* before this process has an engine */
  if (child == 0) return write_and_read(to_child[0]);
  transfer_engine_t engine = open_engine();
  char *const memory = calloc(1, kBytes);
  struct Address address = {"", (uint64_t)memory};
  if (registerLocalMemory(engine, memory, kBytes, "*", 1) != 0) fail("registerLocalMemory");
  if (getLocalIpAndPort(engine, address.name, sizeof(address.name)) != 0) fail("getLocalIpAndPort");
  if (write(to_child[1], &address, sizeof(address)) != (ssize_t)sizeof(address)) fail("write");
  int status = 1;
  if (waitpid(child, &status, 0) != child || status != 0) fail("the child");
  int count = 0;
  notify_msg_t *const notes = getNotifsFromEngine(engine, &count);
  if (count != 1) fail("getNotifsFromEngine");
  printf("received \"%s\", \"%s\" by %s\n", memory + kBytes - sizeof(kText), notes[0].msg, notes[0].name);
  freeNotifsMsgBuf(notes, count);
  unregisterLocalMemory(engine, memory);
  destroyTransferEngine(engine);
  free(memory);
  return 0;
}
