// Descriptor of this process and its publication.
#include "transfer_engine/self_segment.h"

namespace mooncake {

std::shared_ptr<const SelfSegment::Snapshot> SelfSegment::Current() const {
  {
    std::lock_guard lock(mutex_);
    if (snapshot_ != nullptr && snapshot_->segment->revision == regions_.revision()) return snapshot_;
  }
  auto segment = std::make_shared<SegmentDescriptor>(base_);
  for (const auto& transport : transports_) transport->Describe(*segment);
  segment->regions = regions_.Published(&segment->revision);
  auto made = std::make_shared<Snapshot>();
  made->text = EncodeSegment(*segment);
  made->segment = std::move(segment);
  std::lock_guard lock(mutex_);
  if (snapshot_ == nullptr || snapshot_->segment->revision < made->segment->revision) snapshot_ = made;
  return snapshot_;
}

std::shared_ptr<const std::string> SelfSegment::Text(const Uuid& generation, uint64_t revision) const {
  const std::shared_ptr<const Snapshot> current = Current();
  if (generation == base_.generation && revision == current->segment->revision) return nullptr;
  return {current, &current->text};
}

Result<void> SegmentPublisher::PublishAddress(Deadline deadline) {
  const SegmentPtr self = self_.Descriptor();
  const std::string key = RpcMetaKey(self->name);
  MC_TRY(store_.Remove(key, deadline));  // some servers refuse to overwrite what a crashed process left
  return store_.Put(key,
                    fmt::format(R"({{"ip_or_host_name":"{}","rpc_port":{}}})", self->control.host, self->control.port),
                    deadline);
}

Result<void> SegmentPublisher::Publish(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const uint64_t enough = begun_ + 1;  // the next to begin sees what the caller has done
  const auto can_go_on = [&] { return done_ >= enough || !writing_; };
  if (!ended_.wait_until(lock, deadline.time(), can_go_on)) {
    return Error(ErrorCode::METADATA_ERROR, "the descriptor was not published in time: an earlier one still is being");
  }
  if (done_ >= enough) return last_;
  writing_ = true;
  const uint64_t number = ++begun_;
  lock.unlock();
  const SegmentPtr self = self_.Descriptor();
  const auto text = self_.Text({}, 0);
  Result<void> result = store_.Put(SegmentKey(self->name), *text, deadline);
  lock.lock();
  writing_ = false;
  done_ = number;
  last_ = result;
  ended_.notify_all();
  return result;
}

Result<void> SegmentPublisher::Withdraw(Deadline deadline) {
  const SegmentPtr self = self_.Descriptor();
  const auto text = MC_TRY(store_.Get(SegmentKey(self->name), deadline));
  if (text) {
    const auto there = DecodeSegment(*text);
    if (there && there->generation != self->generation) return {};
    MC_TRY(store_.Remove(SegmentKey(self->name), deadline));
  }
  return store_.Remove(RpcMetaKey(self->name), deadline);
}

}  // namespace mooncake
