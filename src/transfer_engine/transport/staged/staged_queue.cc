// Turns, deadlines of those without one yet, and the end.
#include "transfer_engine/transport/staged/staged_queue.h"

#include <pthread.h>

#include <algorithm>

#include "common/check.h"
#include "common/exhaustion.h"
#include "common/log.h"

namespace mooncake::staged {

Queue::~Queue() {
  MC_CHECK(!thread_.joinable() && open_.empty(), "{} transfers are open at the end", open_.size());
}

void Queue::Add(TransferOperation operation, Transport& wire) {
  const Uuid peer = operation.target->generation;
  auto transfer = std::make_shared<Transfer>(shared_from_this(), links_, wire, std::move(operation));
  TransferPtr start;
  bool closed = false;
  {
    std::lock_guard lock(mutex_);
    closed = closed_;
    if (!closed) {
      Kind& kind = peers_[peer].Of(*transfer);
      kind.waiting.push_back(transfer);
      deadlines_.emplace(transfer->deadline().time(), transfer.get());
      start = Next(kind);
      if (start == nullptr) StartThread();
    }
  }
  if (closed) return transfer->Refuse(Status(ErrorCode::SHUTTING_DOWN, "the transfer engine is being closed"));
  if (start != nullptr) start->Start();
}

Queue::TransferPtr Queue::Next(Kind& kind) {
  if (kind.waiting.empty() || kind.open >= kind.limit) return nullptr;
  TransferPtr next = std::move(kind.waiting.front());
  kind.waiting.pop_front();
  deadlines_.erase({next->deadline().time(), next.get()});
  ++kind.open;
  open_.emplace(next.get(), next);
  return next;
}

void Queue::Left(const TransferPtr& transfer) {
  TransferPtr start;
  {
    std::lock_guard lock(mutex_);
    open_.erase(transfer.get());
    const auto peer = peers_.find(transfer->peer());
    Kind& kind = peer->second.Of(*transfer);
    --kind.open;
    start = Next(kind);
    if (peer->second.Idle()) peers_.erase(peer);
    changed_.notify_all();
  }
  if (start != nullptr) start->Start();
}

void Queue::StopWaiting(const TransferPtr& transfer) {
  deadlines_.erase({transfer->deadline().time(), transfer.get()});
  const auto peer = peers_.find(transfer->peer());
  std::erase(peer->second.Of(*transfer).waiting, transfer);
  if (peer->second.Idle()) peers_.erase(peer);
}

void Queue::Cancel(BatchId tag) {
  std::vector<TransferPtr> waiting;
  std::vector<TransferPtr> open;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [peer, queue] : peers_) {
      for (const Kind* const kind : {&queue.small, &queue.large}) {
        std::ranges::copy_if(kind->waiting, std::back_inserter(waiting),
                             [tag](const TransferPtr& transfer) { return transfer->tag() == tag; });
      }
    }
    for (const TransferPtr& transfer : waiting) StopWaiting(transfer);
    for (const auto& [key, transfer] : open_) {
      if (transfer->tag() == tag) open.push_back(transfer);
    }
  }
  const Status why(ErrorCode::TRANSFER_CANCELED, "canceled by the application");
  for (const TransferPtr& transfer : waiting) transfer->Refuse(why);
  for (const TransferPtr& transfer : open) transfer->Stop(why);
}

void Queue::Close() {
  std::vector<TransferPtr> waiting;
  std::vector<TransferPtr> open;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    for (auto& [peer, queue] : peers_) {
      for (Kind* const kind : {&queue.small, &queue.large}) {
        std::ranges::move(kind->waiting, std::back_inserter(waiting));
        kind->waiting.clear();
      }
    }
    deadlines_.clear();
    for (const auto& [key, transfer] : open_) open.push_back(transfer);
    changed_.notify_all();
  }
  const Status why(ErrorCode::SHUTTING_DOWN, "the transfer engine is being closed");
  for (const TransferPtr& transfer : waiting) transfer->Refuse(why);
  for (const TransferPtr& transfer : open) transfer->Stop(why);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_.empty(); });
  }
  if (thread_.joinable()) thread_.join();
}

void Queue::StartThread() {
  changed_.notify_all();
  if (thread_.joinable()) return;
  const auto started = CatchExhaustion([this]() -> Result<void> {
    thread_ = std::thread([this] { Run(); });
    return {};
  });
  // What waits past its deadline then ends when its turn comes.
  if (!started) return log::Warn("no thread for deadlines of staged transfers: {}", started.error().message());
  (void)pthread_setname_np(thread_.native_handle(), "te_staged");
}

void Queue::Run() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    if (deadlines_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto [time, first] = *deadlines_.begin();
    if (SteadyClock::Instance().Now() < time) {
      changed_.wait_until(lock, time);
      continue;
    }
    const TransferPtr late = first->shared_from_this();
    StopWaiting(late);
    lock.unlock();
    late->Refuse(Status(ErrorCode::TRANSFER_TIMEOUT, "the deadline passed before the transfer began"));
    lock.lock();
  }
}

}  // namespace mooncake::staged
