// To NPU memory of other processes from host memory of this one, through host slots that its owner lends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transfer_engine/peer_links.h"
#include "transfer_engine/transport.h"

namespace mooncake {

namespace staged {
class Queue;
}

// Part of every build: it is the owner that needs an NPU, and drives it. Any thread, but for destruction.
class StagedTransport final : public Transport {
 public:
  // `wires`: host transports, best first, of the engine that owns this one. They and `links` outlive it.
  StagedTransport(PeerLinks& links, std::vector<Transport*> wires);
  ~StagedTransport() override;

  const char* name() const override { return "staged"; }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor& target, const SegmentRegion& region) const override;
  std::string WhyNot(const MemoryRange& local, const SegmentDescriptor& target,
                     const SegmentRegion& region) const override;
  std::string Way(const MemoryRange& local, const SegmentDescriptor& target,
                  const SegmentRegion& region) const override;
  // A write has ended when its bytes are in the NPU's memory. Errors that the owner met come with its words.
  void Submit(std::vector<TransferOperation> operations, Caller caller) override;
  void Cancel(BatchId tag) override;

 private:
  Transport* WireFor(const MemoryRange& local, const SegmentDescriptor& target) const;

  const std::vector<Transport*> wires_;
  const std::shared_ptr<staged::Queue> queue_;
};

}  // namespace mooncake
