// Open windows by session.
#include "transfer_engine/window_table.h"

namespace mooncake {

Result<uint64_t> WindowTable::Open(rpc::SessionId session, Window window) {
  std::lock_guard lock(mutex_);
  auto& windows = sessions_[session];
  if (windows.size() >= max_per_session_) {
    return Error(ErrorCode::BUFFER_OVERFLOW, "session has {} windows open already", windows.size());
  }
  const uint64_t id = next_id_++;
  windows.emplace(id, std::move(window));
  return id;
}

Result<WindowTable::Window> WindowTable::Find(rpc::SessionId session, uint64_t id, uint64_t offset, uint64_t size,
                                              bool for_write) const {
  std::lock_guard lock(mutex_);
  const auto windows = sessions_.find(session);
  if (windows == sessions_.end() || !windows->second.contains(id)) {
    return Error(ErrorCode::INVALID_READ, "no window {} is open for this connection", id);
  }
  const Window& window = windows->second.at(id);
  if (for_write && !window.writable) return Error(ErrorCode::INVALID_WRITE, "window {} is for reading", id);
  const uint64_t window_size = SizeOf(window.memory);
  if (offset > window_size || size > window_size - offset) {
    return Error(ErrorCode::INVALID_PARAMS, "range [{}, +{}) leaves window {} of {} B", offset, size, id, window_size);
  }
  return window;
}

bool WindowTable::Close(rpc::SessionId session, uint64_t id) {
  Window gone;  // dies after the lock: dropping the memory may call the device
  std::lock_guard lock(mutex_);
  const auto windows = sessions_.find(session);
  if (windows == sessions_.end()) return false;
  const auto found = windows->second.find(id);
  if (found == windows->second.end()) return false;
  gone = std::move(found->second);
  windows->second.erase(found);
  if (windows->second.empty()) sessions_.erase(windows);
  return true;
}

void WindowTable::CloseSession(rpc::SessionId session) {
  std::unordered_map<uint64_t, Window> gone;
  std::lock_guard lock(mutex_);
  if (const auto windows = sessions_.find(session); windows != sessions_.end()) {
    gone = std::move(windows->second);
    sessions_.erase(windows);
  }
}

size_t WindowTable::open_count() const {
  std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& [session, windows] : sessions_) count += windows.size();
  return count;
}

}  // namespace mooncake
