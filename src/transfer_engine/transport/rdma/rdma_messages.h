// What two RDMA transports say to each other over the control connection.
#pragma once

#include <string>
#include <vector>

#include "rpc/codec.h"

namespace mooncake::rdma {

// One end of a queue pair, as the other end has to address it.
struct QueueAddress {
  uint32_t number = 0;        // of the queue pair
  uint32_t first_packet = 0;  // its first packet sequence number
  std::vector<uint8_t> gid;   // 16 bytes
  uint16_t lid = 0;
  uint8_t mtu = 1;         // ibv_mtu
  uint8_t read_depth = 1;  // reads it serves, or sends, at once
  MSGPACK_DEFINE_MAP(number, first_packet, gid, lid, mtu, read_depth);
};

// Queue pairs belong to the connection that kRdmaConnect came over and live until it ends, or until kRdmaDisconnect.
// The sender numbers them. `epoch` counts how often the receiver has fenced the sender on this connection: a sender
// that has not learned of a fence gets no new queue pairs, so that what it began before does not go on through them.

struct ConnectRequest {
  struct Queue {
    uint64_t id = 0;
    std::string device;  // of the process that is asked
    QueueAddress sender;
    MSGPACK_DEFINE_MAP(id, device, sender);
  };
  Uuid target;  // generation of the process that is meant
  uint64_t epoch = 0;
  std::vector<Queue> queues;
  MSGPACK_DEFINE_MAP(target, epoch, queues);
};

struct ConnectReply {
  struct Queue {
    int32_t code = 0;  // ErrorCode: why there is none
    std::string message;
    QueueAddress receiver;  // it receives already
    MSGPACK_DEFINE_MAP(code, message, receiver);
  };
  uint64_t epoch = 0;         // another one than in the request: `queues` is empty
  std::vector<Queue> queues;  // as in the request
  MSGPACK_DEFINE_MAP(epoch, queues);
};

// kRdmaReady: the senders receive as well. kRdmaDisconnect: after the reply nothing that was sent to these queue pairs
// changes memory. Ids that are not there (any more) are passed over.
struct QueueList {
  std::vector<uint64_t> ids;
  MSGPACK_DEFINE_MAP(ids);
};

struct QueueListReply {
  uint64_t epoch = 0;
  std::vector<uint64_t> ids;  // those found
  MSGPACK_DEFINE_MAP(epoch, ids);
};

}  // namespace mooncake::rdma
