// Registration of memory with devices.
#include "transfer_engine/transport/rdma/memory_table.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>

#include "common/check.h"
#include "common/log.h"

namespace mooncake::rdma {
namespace {

constexpr size_t kMaxThreads = 8;
constexpr uint64_t kTouchBytes = 64ull << 20;  // per step of a thread
constexpr uint64_t kTouchFrom = 256ull << 20;  // smaller regions are faulted in fast enough by registering them

uint64_t PageBytes() {
  return static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Runs step(0..steps-1) on up to kMaxThreads threads, this one among them.
void InParallel(size_t steps, const std::function<void(size_t)>& step) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < steps; i = next++) step(i);
  };
  std::vector<std::thread> helpers;
  const size_t processors = std::max(1u, std::thread::hardware_concurrency());
  // Where no more threads are to be had, those that there are do it.
  try {
    for (size_t i = 1; i < std::min({steps, kMaxThreads, processors}); ++i) helpers.emplace_back(work);
  } catch (const std::system_error& error) {
    log::Debug("registering memory with {} threads: {}", helpers.size() + 1, error.what());
  }
  work();
  for (std::thread& helper : helpers) helper.join();
}

std::string LockedMemoryLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return fmt::format("; this process may lock {} bytes of memory (ulimit -l, LimitMEMLOCK): RDMA needs it unlimited",
                     limit.rlim_cur);
}

}  // namespace

void TouchPages(uint64_t address, uint64_t length) {
  if (length < kTouchFrom) return;
  const uint64_t page = PageBytes();
  const uint64_t first = address / page * page;
  const uint64_t bytes = address + length - first;
  InParallel((bytes + kTouchBytes - 1) / kTouchBytes, [&](size_t step) {
    const uint64_t at = first + step * kTouchBytes;
    // What cannot be populated (old kernels, device mappings) is left to the registration.
    (void)madvise(reinterpret_cast<void*>(at), std::min(kTouchBytes, first + bytes - at), MADV_POPULATE_WRITE);
  });
}

void MemoryTable::Pin::Release() {
  if (table_ == nullptr) return;
  MemoryTable& table = *std::exchange(table_, nullptr);
  {
    std::lock_guard lock(table.mutex_);
    if (--entry_->users == 0) table.unpinned_.notify_all();
  }
  entry_.reset();
}

MemoryTable::MemoryTable(std::vector<RdmaDevice*> devices, const RdmaOptions& options)
    : devices_(std::move(devices)), relaxed_ordering_(options.relaxed_ordering), piece_bytes_(options.max_mr_bytes) {
  for (const RdmaDevice* device : devices_) {
    if (device->attributes().max_mr_size > 0) piece_bytes_ = std::min(piece_bytes_, device->attributes().max_mr_size);
  }
  // Pieces of whole (huge, if it is large enough) pages.
  constexpr uint64_t kHugePage = 2ull << 20;
  const uint64_t unit = piece_bytes_ >= kHugePage ? kHugePage : PageBytes();
  piece_bytes_ = std::max(piece_bytes_ / unit * unit, unit);
}

MemoryTable::~MemoryTable() {
  for (auto& [address, entry] : by_address_) {
    MC_CHECK(entry->users == 0, "memory {:#x} is closed with {} users", address, entry->users);
    DeregisterPieces(entry->memory);
  }
  for (auto& [memory, entry] : hidden_) DeregisterPieces(entry->memory);
}

Result<ibv_mr*> MemoryTable::RegisterPiece(RdmaDevice& device, uint64_t address, uint64_t length, int access) const {
  auto* start = reinterpret_cast<void*>(address);
  ibv_mr* mr = nullptr;
  if (relaxed_ordering_) {
    mr = device.verbs().reg_mr(device.pd(), start, length, address,
                               static_cast<unsigned>(access) | IBV_ACCESS_RELAXED_ORDERING);
  }
  if (mr == nullptr) mr = device.verbs().reg_mr(device.pd(), start, length, address, static_cast<unsigned>(access));
  if (mr != nullptr) return mr;
  const int error = errno;
  return std::unexpected(
      Status(ErrorCode::TRANSFER_FAIL,
             fmt::format("RDMA device {} cannot register memory [{:#x}, +{}): {}{}", device.name(), address, length,
                         std::strerror(error), error == ENOMEM || error == EAGAIN ? LockedMemoryLimit() : ""),
             error));
}

Result<void> MemoryTable::RegisterPieces(RegisteredMemory& memory, int access) {
  TouchPages(memory.address, memory.length);
  std::mutex mutex;
  Result<void> outcome;
  InParallel(memory.pieces.size() * devices_.size(), [&](size_t step) {
    const size_t piece = step / devices_.size();
    const size_t device = step % devices_.size();
    {
      std::lock_guard lock(mutex);
      if (!outcome) return;
    }
    const uint64_t offset = piece * memory.piece_bytes;
    const uint64_t bytes =
        memory.piece_bytes == 0 ? memory.length : std::min(memory.piece_bytes, memory.length - offset);
    const Result<ibv_mr*> mr = RegisterPiece(*devices_[device], memory.address + offset, bytes, access);
    if (mr) {
      memory.pieces[piece][device] = *mr;
      return;
    }
    std::lock_guard lock(mutex);
    if (outcome) outcome = std::unexpected(mr.error());
  });
  return outcome;
}

void MemoryTable::DeregisterPieces(RegisteredMemory& memory) {
  for (auto& piece : memory.pieces) {
    for (size_t device = 0; device < piece.size(); ++device) {
      if (piece[device] == nullptr) continue;
      const int rc = devices_[device]->verbs().dereg_mr(std::exchange(piece[device], nullptr));
      // Of a device that is lost: then it cannot reach the memory either.
      if (rc != 0)
        log::Error("RDMA device {} keeps memory {:#x}: {}", devices_[device]->name(), memory.address,
                   std::strerror(rc));
    }
  }
}

Result<const RegisteredMemory*> MemoryTable::Register(uint64_t address, uint64_t length, bool remote) {
  auto entry = std::make_shared<Entry>();
  RegisteredMemory& memory = entry->memory;
  memory.address = address;
  memory.length = length;
  memory.piece_bytes = length > piece_bytes_ ? piece_bytes_ : 0;
  const size_t pieces = memory.piece_bytes == 0 ? 1 : (length + piece_bytes_ - 1) / piece_bytes_;
  memory.pieces.assign(pieces, std::vector<ibv_mr*>(devices_.size(), nullptr));
  const int access = IBV_ACCESS_LOCAL_WRITE | (remote ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : 0);
  if (const Result<void> registered = RegisterPieces(memory, access); !registered) {
    DeregisterPieces(memory);
    return std::unexpected(registered.error());
  }
  std::lock_guard lock(mutex_);
  const bool added = by_address_.emplace(address, entry).second;
  MC_CHECK(added, "memory {:#x} registered twice", address);
  return &entry->memory;
}

const RegisteredMemory* MemoryTable::Hide(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = by_address_.find(address);
  if (found == by_address_.end()) return nullptr;
  const std::shared_ptr<Entry> entry = std::move(found->second);
  by_address_.erase(found);
  hidden_.emplace(&entry->memory, entry);
  return &entry->memory;
}

bool MemoryTable::WaitUnpinned(const RegisteredMemory* memory, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Entry> entry = hidden_.at(memory);
  return unpinned_.wait_until(lock, deadline.time(), [&] { return entry->users == 0; });
}

void MemoryTable::Deregister(const RegisteredMemory* memory) {
  std::shared_ptr<Entry> entry;
  {
    std::lock_guard lock(mutex_);
    entry = std::move(hidden_.at(memory));
    hidden_.erase(memory);
    MC_CHECK(entry->users == 0, "memory {:#x} is deregistered with {} users", memory->address, entry->users);
  }
  DeregisterPieces(entry->memory);
}

const std::shared_ptr<MemoryTable::Entry>* MemoryTable::Covering(uint64_t address, uint64_t length) const {
  const auto after = by_address_.upper_bound(address);
  if (after == by_address_.begin()) return nullptr;
  const std::shared_ptr<Entry>& entry = std::prev(after)->second;
  const RegisteredMemory& memory = entry->memory;
  const bool covers = length <= memory.length && address - memory.address <= memory.length - length;
  return covers ? &entry : nullptr;
}

MemoryTable::Pin MemoryTable::Find(uint64_t address, uint64_t length) {
  Pin pin;
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Entry>* entry = Covering(address, length);
  if (entry == nullptr) return pin;
  pin.table_ = this;
  pin.entry_ = *entry;
  ++pin.entry_->users;
  return pin;
}

bool MemoryTable::Covers(uint64_t address, uint64_t length) const {
  std::lock_guard lock(mutex_);
  return Covering(address, length) != nullptr;
}

}  // namespace mooncake::rdma
