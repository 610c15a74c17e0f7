// Numbers of every remote call, one space for all servers, so that a call sent to the wrong kind of server is
// recognised.
#pragma once

#include <cstdint>

namespace mooncake::protocol {

enum Method : uint16_t {
  // answered by a master
  kRegister = 1,
  kUnregister,
  kHeartbeat,
  kAnnounce,
  kLookup,
  kWriteRoute,
  kListClients,
  kReportPeer,
  kRemoveKeys,
  kRemoveFloor,
  // answered by a client, for its peers
  kPeerGet = 100,
  kPeerPut,
  kPeerOpenRead,
  kPeerOpenWrite,
  kPeerCommitWrite,
  kPeerCloseWindow,
  kPeerRemove,
  kPeerRemoveAll,
  kPeerExist,
  kPeerCloseWindows,
  kPeerInvalidate,
  kPeerRemoveByRegex,
  kPeerListKeys,
  kPeerProbe,
  // bytes of a window
  kWindowRead = 200,
  kWindowWrite,
  // answered by a transfer engine
  kEngineDescribe = 400,
  kEngineNotify,
  kEngineProbe,
  kEngineWatch,  // never answered: its end tells that the process is gone
  kRdmaConnect = 420,
  kRdmaReady,
  kRdmaDisconnect,
  // answered by a client on its local control port
  kHealth = 300,
};

inline constexpr const char* kRoleMaster = "master";
inline constexpr const char* kRoleClient = "client";
inline constexpr const char* kRoleEngine = "engine";

}  // namespace mooncake::protocol
