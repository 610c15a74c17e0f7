// Copy, wait, send, wait.
#include "bench/bridge_serial.h"

#include <pthread.h>

#include "bench/bridge_load.h"
#include "common/idle_spin.h"

namespace mooncake::bench {
namespace {

constexpr Duration kSpin = std::chrono::microseconds(50);  // as the bridge's thread

void End(TransferOperation& operation, Result<void> result) {
  auto done = std::move(operation.done);
  operation.local_use.Release();
  done(std::move(result));
}

}  // namespace

Result<std::unique_ptr<SerialBridge>> SerialBridge::Open(std::shared_ptr<NpuRuntime> runtime, Transport& wire,
                                                         int32_t device_id, size_t bytes_max) {
  MC_TRY(runtime->OpenDevice(device_id));
  Transport* const wires[] = {&wire};
  auto memory = MC_TRY(bridge::BounceMemory::Create(*runtime, device_id, bytes_max, wires));
  return std::unique_ptr<SerialBridge>(new SerialBridge(std::move(runtime), wire, std::move(memory)));
}

SerialBridge::SerialBridge(std::shared_ptr<NpuRuntime> runtime, Transport& wire,
                           std::unique_ptr<bridge::BounceMemory> memory)
    : runtime_(std::move(runtime)), wire_(wire), memory_(std::move(memory)), thread_([this] { Run(); }) {}

SerialBridge::~SerialBridge() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
    filled_.store(true);
    came_.notify_one();
  }
  thread_.join();
  for (TransferOperation& operation : waiting_) End(operation, Error(ErrorCode::SHUTTING_DOWN, "the bridge is closed"));
}

void SerialBridge::Submit(std::vector<TransferOperation> operations, Caller) {
  std::lock_guard lock(mutex_);
  for (TransferOperation& operation : operations) waiting_.push_back(std::move(operation));
  filled_.store(true, std::memory_order_release);
  came_.notify_one();
}

void SerialBridge::Cancel(BatchId tag) {
  std::vector<TransferOperation> canceled;
  {
    std::lock_guard lock(mutex_);
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      if (at->tag != tag) {
        ++at;
        continue;
      }
      canceled.push_back(std::move(*at));
      at = waiting_.erase(at);
    }
  }
  for (TransferOperation& operation : canceled) End(operation, Error(ErrorCode::TRANSFER_CANCELED, "canceled"));
}

Result<void> SerialBridge::Send(const TransferOperation& operation, HostRange staged) {
  Landing landing(1);
  TransferOperation part;
  part.opcode = operation.opcode;
  part.local = staged;
  part.target = operation.target;
  part.region = operation.region;
  part.target_address = operation.target_address;
  part.tag = operation.tag;
  part.deadline = operation.deadline;
  part.done = landing.Done();
  std::vector<TransferOperation> parts;
  parts.push_back(std::move(part));
  wire_.Submit(std::move(parts), Caller::kGoesOn);
  return landing.Await();
}

Result<void> SerialBridge::Move(const TransferOperation& operation) {
  const size_t bytes = operation.length();
  if (bytes > memory_->bytes().size()) {
    return Error(ErrorCode::INVALID_PARAMS, "{} B do not fit {} B of host memory", bytes, memory_->bytes().size());
  }
  if (operation.deadline.Passed()) return Error(ErrorCode::TRANSFER_TIMEOUT, "the deadline passed in the queue");
  const HostRange staged = memory_->bytes().first(bytes);
  const AscendUnifiedPointer at = std::get<NpuRange>(operation.local).at;
  if (operation.opcode == TransferOpcode::kWrite) {
    MC_TRY(runtime_->CopyDeviceToHost(staged.data(), staged.size(), at, bytes));
    return Send(operation, staged);
  }
  MC_TRY(Send(operation, staged));
  return runtime_->CopyHostToDevice(at, bytes, staged.data(), bytes);
}

void SerialBridge::Run() {
  (void)pthread_setname_np(pthread_self(), "bench-serial");
  IdleSpin spin;
  const auto filled = [this] { return filled_.load(std::memory_order_acquire); };
  while (true) {
    if (!spin.Until(kSpin, filled)) {
      const TimePoint asleep = SteadyClock::Instance().Now();
      std::unique_lock lock(mutex_);
      came_.wait(lock, filled);
      lock.unlock();
      spin.Slept(kSpin, SteadyClock::Instance().Now() - asleep);
    }
    std::unique_lock lock(mutex_);
    if (stop_) return;
    if (waiting_.empty()) {
      filled_.store(false, std::memory_order_relaxed);
      continue;
    }
    TransferOperation operation = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    auto result = Move(operation);
    End(operation, std::move(result));
  }
}

}  // namespace mooncake::bench
