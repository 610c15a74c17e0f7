// Memory this process has opened for its peers, session by session.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "common/status.h"
#include "device/memory_range.h"
#include "rpc/rpc_server.h"

namespace mooncake {

// A window belongs to the session it was opened for: nobody else can use it, and it goes when the session does, so a
// reader or writer that dies leaves no pin behind. Any thread.
class WindowTable {
 public:
  struct Window {
    MemoryRange memory;
    std::shared_ptr<const void> keep_alive;  // holds the memory; dropped with the last copy of the window
    bool writable = false;
  };

  explicit WindowTable(size_t max_per_session = 1024) : max_per_session_(max_per_session) {}

  // A non-zero id; BUFFER_OVERFLOW when the session has too many open.
  Result<uint64_t> Open(rpc::SessionId session, Window window);
  // The window if it is this session's, writable if asked for, and covers [offset, offset + size).
  Result<Window> Find(rpc::SessionId session, uint64_t id, uint64_t offset, uint64_t size, bool for_write) const;
  // Removes it; false when this session has no such window.
  bool Close(rpc::SessionId session, uint64_t id);
  void CloseSession(rpc::SessionId session);
  size_t open_count() const;

 private:
  const size_t max_per_session_;
  mutable std::mutex mutex_;
  uint64_t next_id_ = 1;
  std::unordered_map<rpc::SessionId, std::unordered_map<uint64_t, Window>> sessions_;
};

}  // namespace mooncake
