// Peers that calls name, kept open between the calls.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "common/clock.h"
#include "common/status.h"
#include "transfer_engine/transfer_engine.h"

namespace mooncake {

// Any thread. The targets used last stay known to the engine, so that naming one again costs no look-up; what is in use
// stays open beside them.
class OpenTargets {
 public:
  // One use of a target; it stays open as long as this lives. Move-only.
  class Use {
   public:
    Use() = default;
    Use(TransferEngine& engine, SegmentId id) : engine_(&engine), id_(id) {}
    Use(Use&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)), id_(other.id_) {}
    Use& operator=(Use&& other) noexcept {
      std::swap(engine_, other.engine_);
      std::swap(id_, other.id_);
      return *this;
    }
    ~Use() {
      if (engine_ != nullptr) (void)engine_->CloseSegment(id_);
    }
    SegmentId id() const { return id_; }

   private:
    TransferEngine* engine_ = nullptr;
    SegmentId id_ = kInvalidSegment;
  };

  // `engine` outlives this and all uses.
  explicit OpenTargets(TransferEngine& engine, size_t most = 1024) : engine_(engine), most_(most) {}

  // Blocks when the target is not known. Errors of TransferEngine::OpenSegment.
  Result<Use> Open(const std::string& name, Deadline deadline);
  size_t size() const;

 private:
  struct Kept {
    std::string name;
    Use use;
  };

  // Puts the name in front; false when it is not kept yet.
  bool Touch(const std::string& name);
  void Keep(const std::string& name, Use use);

  TransferEngine& engine_;
  const size_t most_;
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // used last first
  std::unordered_map<std::string, std::list<Kept>::iterator> by_name_;
};

}  // namespace mooncake
