// Life and end of the I/O threads.
#include "rpc/io_pool.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "common/check.h"
#include "rpc/io_thread.h"

namespace mooncake::rpc {
namespace internal {
namespace {
thread_local const IoThread* current_thread = nullptr;
}  // namespace

bool IoThread::IsCurrent() const {
  return current_thread == this;
}
bool IoThread::CurrentIsAny() {
  return current_thread != nullptr;
}

void IoThread::Start() {
  thread_ = std::thread([this] { Run(); });
}

void IoThread::Run() {
  current_thread = this;
  context_.run();
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  // What was posted before the door closed still runs; everything here is aborted, so it ends soon.
  context_.restart();
  context_.run();
  current_thread = nullptr;
}

void IoThread::BeginStop() {
  asio::post(context_, [this] { AbortAll(); });
  work_.reset();
}

void IoThread::Join() {
  thread_.join();
}

void IoThread::AbortAll() {
  std::vector<std::weak_ptr<Abortable>> objects;
  {
    std::lock_guard lock(mutex_);
    aborting_ = true;
    for (const auto& [pointer, object] : objects_) objects.push_back(object);
    objects_.clear();
  }
  for (const auto& weak : objects) {
    if (const auto object = weak.lock()) object->Abort();
  }
}

bool IoThread::Register(const std::shared_ptr<Abortable>& object) {
  std::lock_guard lock(mutex_);
  if (aborting_ || closed_) return false;
  objects_.emplace(object.get(), object);
  return true;
}

void IoThread::Unregister(Abortable* object) {
  std::lock_guard lock(mutex_);
  objects_.erase(object);
}

struct IoPoolState {
  std::vector<std::shared_ptr<IoThread>> threads;
  std::atomic<size_t> next{0};

  ~IoPoolState() {
    for (const auto& thread : threads) thread->BeginStop();
    for (const auto& thread : threads) thread->Join();
  }
};

}  // namespace internal

IoPool::IoPool(size_t threads) : state_(std::make_unique<internal::IoPoolState>()) {
  for (size_t i = 0; i < std::max<size_t>(threads, 1); ++i) {
    auto thread = std::make_shared<internal::IoThread>();
    thread->Start();  // throws where no thread is to be had; those there are end with the state
    state_->threads.push_back(std::move(thread));
  }
}

IoPool::~IoPool() {
  MC_CHECK(!internal::IoThread::CurrentIsAny(), "an I/O pool of {} threads cannot be destroyed from an I/O thread",
           state_->threads.size());
}

size_t IoPool::threads() const {
  return state_->threads.size();
}

std::shared_ptr<internal::IoThread> IoPool::NextThread() {
  const size_t turn = state_->next.fetch_add(1, std::memory_order_relaxed);
  return state_->threads[turn % state_->threads.size()];
}

}  // namespace mooncake::rpc
