// Choice of the wire below.
#include "transfer_engine/transport/staged/staged_transport.h"

#include "transfer_engine/transport/staged/staged_queue.h"

namespace mooncake {
namespace {

// A slot that the target may lend, as far as its descriptor tells: it is known when it is lent.
SegmentRegion SomeSlot(const SegmentDescriptor& target) {
  return {.address = 1,
          .length = 1,
          .location = "cpu",
          .key = 1,
          .rkeys = {{std::vector<uint32_t>(target.devices.size())}}};
}

}  // namespace

StagedTransport::StagedTransport(PeerLinks& links, std::vector<Transport*> wires)
    : wires_(std::move(wires)), queue_(std::make_shared<staged::Queue>(links)) {}

StagedTransport::~StagedTransport() {
  queue_->Close();
}

Transport* StagedTransport::WireFor(const MemoryRange& local, const SegmentDescriptor& target) const {
  const SegmentRegion slot = SomeSlot(target);
  for (Transport* const wire : wires_) {
    if (wire->Reaches(local, target, slot)) return wire;
  }
  return nullptr;
}

bool StagedTransport::Reaches(const MemoryRange& local, const SegmentDescriptor& target,
                              const SegmentRegion& region) const {
  return IsHost(local) && region.staged && region.key != 0 && target.control.port != 0 &&
         WireFor(local, target) != nullptr;
}

std::string StagedTransport::WhyNot(const MemoryRange& local, const SegmentDescriptor&,
                                    const SegmentRegion& region) const {
  if (!region.location.starts_with("npu")) return "it is for NPU memory of the target";
  if (!region.staged) return "the target does not lend host slots for this NPU memory (no ascend_rdma there)";
  if (!IsHost(local)) return "it is for host memory of this process";
  if (region.key == 0) return "the region is open to grants only";
  return "no host transport reaches the target";
}

std::string StagedTransport::Way(const MemoryRange& local, const SegmentDescriptor& target,
                                 const SegmentRegion&) const {
  const Transport* const wire = WireFor(local, target);
  return wire == nullptr ? name() : fmt::format("{} by the target over {}", name(), wire->name());
}

void StagedTransport::Submit(std::vector<TransferOperation> operations, Caller) {
  for (TransferOperation& operation : operations) {
    Transport* const wire = WireFor(operation.local, *operation.target);
    if (wire != nullptr) {
      queue_->Add(std::move(operation), *wire);
      continue;
    }
    operation.local_use.Release();
    operation.done(Error(ErrorCode::TRANSFER_FAIL, "{}: no host transport reaches it", operation.target->name));
  }
}

void StagedTransport::Cancel(BatchId tag) {
  queue_->Cancel(tag);
}

}  // namespace mooncake
