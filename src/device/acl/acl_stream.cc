// NpuStream on an ACL stream, its marks on events.
#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "common/log.h"
#include "device/acl/acl_driver.h"

namespace mooncake::acl {
namespace {

constexpr size_t kBatchEntriesMax = 4096;
// Fewer are not worth a batch.
constexpr size_t kBatchEntriesMin = 4;

int32_t ToMilliseconds(Duration timeout) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  return static_cast<int32_t>(std::clamp<int64_t>(ms, 1, std::numeric_limits<int32_t>::max()));
}

Location LocationOf(const CopyEnd& end) {
  if (end.on_host()) return {0, kLocationHost};
  return {static_cast<uint32_t>(end.device_id()), kLocationDevice};
}

class AclStream final : public NpuStream {
 public:
  AclStream(Devices& devices, int32_t device_id, Stream stream)
      : devices_(devices), functions_(devices.functions()), device_id_(device_id), stream_(stream) {}
  ~AclStream() override;

  Result<void> Submit(std::span<const NpuCopy> copies) override;
  Result<Mark> MarkHere() override;
  Result<Waited> AwaitMark(Mark mark, Duration timeout) override;
  Result<Waited> Synchronize(Duration timeout) override;
  Result<Waited> Poll() override;
  Result<void> Abort() override;

 private:
  // While work is queued the context of a lost device is good enough.
  Context context() const { return devices_.OpenContext(device_id_); }
  std::unexpected<Status> Failed(AclError error, const std::string& what) {
    return std::unexpected(devices_.Failed(device_id_, ErrorCode::DATA_COPY_FAILED, error, what));
  }
  AclError SubmitEach(std::span<const NpuCopy> copies, const NpuCopy*& guilty);
  AclError SubmitBatch(std::span<const NpuCopy> copies, const NpuCopy*& guilty);
  Result<Waited> SynchronizeHere(Duration timeout);

  Devices& devices_;
  const FunctionTable& functions_;
  const int32_t device_id_;
  const Stream stream_;
  std::map<Mark, Event> marks_;  // recorded, not awaited
  std::vector<Event> idle_events_;
  Mark last_mark_ = 0;
  std::optional<Status> copy_error_;  // told by the runtime while awaiting a mark, not yet reported
  bool no_batches_ = false;
};

AclStream::~AclStream() {
  const ScopedContext scope(functions_, context());
  // Waits for what is queued.
  const AclError rc = Insist(functions_.DestroyStream, stream_);
  for (const auto& [mark, event] : marks_) idle_events_.push_back(event);
  for (const Event event : idle_events_) (void)Insist(functions_.DestroyEvent, event);
  // A device that is gone refuses this, too, and touches nothing any more.
  if (rc != kSuccess && !MeansDeviceLost(rc)) log::Error("{}", Failed(rc, "aclrtDestroyStream").error().ToString());
}

AclError AclStream::SubmitEach(std::span<const NpuCopy> copies, const NpuCopy*& guilty) {
  for (const NpuCopy& copy : copies) {
    const int kind = KindOf(copy.direction());
    const size_t step = kind == kDeviceToDevice ? kDeviceCopyBytesMax : copy.size;
    for (size_t done = 0; done < copy.size; done += step) {
      const NpuCopy part = copy.Part(done, std::min(step, copy.size - done));
      const AclError rc = functions_.MemcpyAsync(ToPointer(part.target), part.capacity, ToPointer(part.source),
                                                 part.size, kind, stream_);
      guilty = &copy;
      if (rc != kSuccess) return rc;
    }
  }
  return kSuccess;
}

AclError AclStream::SubmitBatch(std::span<const NpuCopy> copies, const NpuCopy*& guilty) {
  std::vector<void*> targets;
  std::vector<void*> sources;
  std::vector<size_t> capacities;
  std::vector<size_t> sizes;
  for (const NpuCopy& copy : copies) {
    targets.push_back(ToPointer(copy.target));
    sources.push_back(ToPointer(copy.source));
    capacities.push_back(copy.capacity);
    sizes.push_back(copy.size);
  }
  BatchAttribute attribute{LocationOf(copies.front().target), LocationOf(copies.front().source), {}};
  size_t attribute_index = 0;
  size_t failed = std::numeric_limits<size_t>::max();
  const AclError rc = functions_.MemcpyBatchAsync(targets.data(), capacities.data(), sources.data(), sizes.data(),
                                                  copies.size(), &attribute, &attribute_index, 1, &failed, stream_);
  if (rc != kSuccess && failed < copies.size()) guilty = &copies[failed];
  return rc;
}

Result<void> AclStream::Submit(std::span<const NpuCopy> copies) {
  MC_CHECK(!copies.empty(), "nothing to submit");
  MC_TRY(devices_.ContextOf(device_id_, ErrorCode::DATA_COPY_FAILED));
  const ScopedContext scope(functions_, context());
  const bool between = copies.front().direction() == CopyDirection::kDeviceToDevice;
  bool batch = functions_.MemcpyBatchAsync != nullptr && !no_batches_ && !between && copies.size() >= kBatchEntriesMin;
  AclError rc = scope.error();
  const NpuCopy* guilty = nullptr;
  for (size_t first = 0; first < copies.size() && rc == kSuccess; first += kBatchEntriesMax) {
    const auto some = copies.subspan(first, std::min(kBatchEntriesMax, copies.size() - first));
    if (batch) rc = SubmitBatch(some, guilty);
    if (batch && rc == kFeatureNotSupported) {
      batch = false;
      no_batches_ = true;
    }
    if (!batch) rc = SubmitEach(some, guilty);
  }
  if (rc == kSuccess) return {};
  const char* call = batch ? "aclrtMemcpyBatchAsync" : "aclrtMemcpyAsync";
  return Failed(rc, fmt::format("{} for {}", call, guilty == nullptr ? Describe(copies) : Describe(*guilty)));
}

Result<NpuStream::Mark> AclStream::MarkHere() {
  const ScopedContext scope(functions_, context());
  AclError rc = scope.error();
  Event event = nullptr;
  if (!idle_events_.empty()) {
    event = idle_events_.back();
    idle_events_.pop_back();
  } else if (rc == kSuccess) {
    // This kind can be recorded again without a reset, in every release.
    rc = functions_.CreateEventExWithFlag(&event, kEventSync | kEventCaptureStreamProgress);
    if (rc != kSuccess) return Failed(rc, "aclrtCreateEventExWithFlag");
  }
  if (rc == kSuccess) rc = functions_.RecordEvent(event, stream_);
  if (rc != kSuccess) {
    if (event != nullptr) idle_events_.push_back(event);
    return Failed(rc, "aclrtRecordEvent");
  }
  marks_.emplace(++last_mark_, event);
  return last_mark_;
}

Result<Waited> AclStream::AwaitMark(Mark mark, Duration timeout) {
  MC_CHECK(mark > 0 && mark <= last_mark_, "mark {} of a stream that made {}", mark, last_mark_);
  const auto found = marks_.find(mark);
  if (found == marks_.end()) return Waited::kDone;  // synchronized since
  const ScopedContext scope(functions_, context());
  if (scope.error() != kSuccess) return Failed(scope.error(), "aclrtSetCurrentContext");
  if (functions_.SynchronizeEventWithTimeout == nullptr) {
    // Waits for more than the mark, but not without a limit.
    const auto waited = SynchronizeHere(timeout);
    if (!waited) copy_error_ = waited.error();
    return waited;
  }
  const AclError rc = functions_.SynchronizeEventWithTimeout(found->second, ToMilliseconds(timeout));
  if (rc == kEventSyncTimeout) return Waited::kTimedOut;
  if (rc != kSuccess) return Failed(rc, "aclrtSynchronizeEventWithTimeout");
  idle_events_.push_back(found->second);
  marks_.erase(found);
  return Waited::kDone;
}

// The stream's context is current.
Result<Waited> AclStream::SynchronizeHere(Duration timeout) {
  const AclError rc = functions_.SynchronizeStreamWithTimeout(stream_, ToMilliseconds(timeout));
  if (rc == kStreamSyncTimeout) return Waited::kTimedOut;
  if (rc != kSuccess) return Failed(rc, "aclrtSynchronizeStreamWithTimeout");
  // What was recorded is done.
  for (const auto& [mark, event] : marks_) idle_events_.push_back(event);
  marks_.clear();
  return Waited::kDone;
}

Result<Waited> AclStream::Synchronize(Duration timeout) {
  if (copy_error_) {
    Status told = *std::exchange(copy_error_, std::nullopt);
    return std::unexpected(std::move(told));
  }
  const ScopedContext scope(functions_, context());
  if (scope.error() != kSuccess) return Failed(scope.error(), "aclrtSetCurrentContext");
  return SynchronizeHere(timeout);
}

Result<Waited> AclStream::Poll() {
  if (!copy_error_ && functions_.StreamQuery != nullptr) {
    const ScopedContext scope(functions_, context());
    int32_t status = kStreamComplete;
    // Whatever else it answers, synchronizing tells what is wrong.
    const AclError rc = scope.error() == kSuccess ? functions_.StreamQuery(stream_, &status) : scope.error();
    if (rc == kSuccess && status == kStreamNotReady) return Waited::kTimedOut;
  }
  return Synchronize({});
}

Result<void> AclStream::Abort() {
  if (functions_.StreamAbort == nullptr) {
    return Error(ErrorCode::NOT_IMPLEMENTED, "{} has no aclrtStreamAbort", devices_.library().path);
  }
  const ScopedContext scope(functions_, context());
  const AclError rc = scope.error() != kSuccess ? scope.error() : functions_.StreamAbort(stream_);
  if (rc != kSuccess) return Failed(rc, "aclrtStreamAbort");
  return {};
}

}  // namespace

Result<std::unique_ptr<NpuStream>> MakeStream(Devices& devices, int32_t device_id) {
  Stream stream = nullptr;
  const AclError rc = devices.functions().CreateStreamWithConfig(&stream, 0, kStreamFastLaunch | kStreamFastSync);
  if (rc != kSuccess) {
    return std::unexpected(devices.Failed(device_id, ErrorCode::INTERNAL_ERROR, rc,
                                          fmt::format("aclrtCreateStreamWithConfig on NPU device {}", device_id)));
  }
  return std::make_unique<AclStream>(devices, device_id, stream);
}

}  // namespace mooncake::acl
