// Bounds how many handshakes this process has under way.
#pragma once

#include <map>
#include <memory>

#include "transfer_engine/transport/rdma/agenda.h"

namespace mooncake::rdma {

// On the agenda's thread only.
class HandshakeGate {
 public:
  explicit HandshakeGate(size_t places) : free_(places) {}

  // False: the chore is asked again, through the agenda, when a place may be free.
  bool Enter(const std::shared_ptr<Chore>& chore) {
    if (free_ == 0) {
      waiting_[chore.get()] = chore;
      return false;
    }
    --free_;
    return true;
  }
  void Leave(Agenda& agenda) {
    ++free_;
    // All of them: the next in line may have no need any more.
    for (const auto& [key, weak] : waiting_) {
      if (const auto chore = weak.lock()) agenda.Now(chore);
    }
    waiting_.clear();
  }

 private:
  size_t free_;
  std::map<Chore*, std::weak_ptr<Chore>> waiting_;
};

}  // namespace mooncake::rdma
