// Virtual memory of devices.
#include "core/virtual_memory.h"

#include <algorithm>

#include "core/report.h"

namespace aclemu {
namespace {

void* Pointer(uintptr_t addr) {
  return reinterpret_cast<void*>(addr);
}

}  // namespace

Physical::~Physical() {
  if (import != nullptr) return;
  Stats().device_paged_bytes.fetch_sub(bytes);
  bool handed_on = exported && Withdraw(*exported, true) == Withdrawal::kHandedOn;
  if (handed_on) return;
  if (Settings().poison && bytes <= Settings().keep_bytes) {
    for (const Extent& extent : extents) Fill(pool.At(extent.offset), extent.bytes, 0xDD);
  }
  pool.Give(extents, huge);
}

VirtualMemory& VirtualMemory::Get() {
  static VirtualMemory* const memory = new VirtualMemory;
  return *memory;
}

std::map<uintptr_t, VirtualMemory::Reservation>::iterator VirtualMemory::Around(uintptr_t addr) {
  auto after = reservations_.upper_bound(addr);
  if (after == reservations_.begin()) return reservations_.end();
  auto found = std::prev(after);
  return addr - found->first < found->second.bytes ? found : reservations_.end();
}

VirtualMemory::Pieces::iterator VirtualMemory::PieceAround(Reservation& reservation, uintptr_t addr) {
  Pieces& pieces = reservation.pieces;
  auto after = pieces.upper_bound(addr);
  if (after == pieces.begin()) return pieces.end();
  auto found = std::prev(after);
  return addr - found->first < found->second.memory->bytes ? found : pieces.end();
}

aclError VirtualMemory::Reserve(int device, uint64_t bytes, uint64_t alignment, uintptr_t wish, uintptr_t* out) {
  RangeMap& ranges = Runtime::Get().ranges;
  uintptr_t base = wish == 0 ? ranges.ReserveAddresses(device, bytes, alignment)
                             : ranges.ReserveNear(device, bytes, alignment, wish);
  if (base == 0) return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no addresses left");
  std::lock_guard lock(mu_);
  reservations_[base] = {device, bytes, {}, {}};
  *out = base;
  return ACL_SUCCESS;
}

aclError VirtualMemory::Release(uintptr_t base) {
  std::lock_guard lock(mu_);
  auto found = reservations_.find(base);
  if (found == reservations_.end()) {
    return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "%p is not the begin of reserved addresses", Pointer(base));
  }
  if (!found->second.pieces.empty()) {
    return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "memory is still mapped in the addresses from %p",
                  Pointer(base));
  }
  reservations_.erase(found);
  return ACL_SUCCESS;
}

bool VirtualMemory::IsReserved(uintptr_t addr) {
  std::lock_guard lock(mu_);
  return Around(addr) != reservations_.end();
}

uint64_t VirtualMemory::Add(std::shared_ptr<Physical> memory) {
  memory->handle = Runtime::Get().NewHandle();
  std::lock_guard lock(mu_);
  return handles_.emplace(memory->handle, memory).first->first;
}

std::shared_ptr<Physical> VirtualMemory::Find(uint64_t handle) {
  std::lock_guard lock(mu_);
  auto found = handles_.find(handle);
  return found == handles_.end() ? nullptr : found->second;
}

aclError VirtualMemory::Free(uint64_t handle) {
  std::shared_ptr<Physical> last;  // ends after the lock
  std::lock_guard lock(mu_);
  auto found = handles_.find(handle);
  if (found == handles_.end()) {
    return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "no such handle of physical memory (freed?)");
  }
  if (--found->second->references > 0) return ACL_SUCCESS;
  last = std::move(found->second);
  handles_.erase(found);
  return ACL_SUCCESS;
}

aclError VirtualMemory::Retain(uintptr_t addr, uint64_t* handle) {
  std::lock_guard lock(mu_);
  auto reservation = Around(addr);
  auto piece = reservation == reservations_.end() ? Pieces::iterator{} : PieceAround(reservation->second, addr);
  if (reservation == reservations_.end() || piece == reservation->second.pieces.end()) {
    return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "no physical memory is mapped at %p", Pointer(addr));
  }
  const std::shared_ptr<Physical>& memory = piece->second.memory;
  handles_.emplace(memory->handle, memory);
  ++memory->references;
  *handle = memory->handle;
  return ACL_SUCCESS;
}

uint32_t VirtualMemory::TasksOn(const Reservation& reservation, uintptr_t begin, uint64_t bytes) {
  uint32_t tasks = 0;
  for (const auto& weak : reservation.runs) {
    auto run = weak.lock();
    if (run == nullptr || run->base >= begin + bytes || run->base + run->bytes <= begin) continue;
    tasks += run->in_flight.load(std::memory_order_acquire);
  }
  return tasks;
}

void VirtualMemory::Rebuild(Reservation& reservation) {
  std::vector<uintptr_t> old;
  std::erase_if(reservation.runs, [](const auto& run) { return run.expired(); });
  for (const auto& weak : reservation.runs) {
    if (auto run = weak.lock()) old.push_back(run->base);
  }
  std::vector<std::shared_ptr<Range>> fresh;
  for (auto& [base, piece] : reservation.pieces) {
    const Physical& memory = *piece.memory;
    Range* last = fresh.empty() ? nullptr : fresh.back().get();
    if (last == nullptr || last->base + last->bytes != base || last->pool != &memory.pool) {
      fresh.push_back(std::make_shared<Range>(MemClass::kDevice, base, 0));
      last = fresh.back().get();
      last->device = memory.device;
      last->pool = &memory.pool;
      last->huge = true;
      last->origin = Origin::kVirtual;
      last->backing = std::make_shared<std::vector<std::shared_ptr<Physical>>>();
      last->reach = UINT64_MAX;
    }
    static_cast<std::vector<std::shared_ptr<Physical>>*>(last->backing.get())->push_back(piece.memory);
    for (const Extent& extent : memory.extents) DevicePool::Append(extent.offset, extent.bytes, &last->extents);
    last->bytes += memory.bytes;
    last->paged = last->bytes;
    last->huge = last->huge && memory.huge;
    last->reach = last->reach.load() & piece.reach;
  }
  for (const auto& run : fresh) reservation.runs.push_back(run);
  Runtime::Get().ranges.Replace(old, std::move(fresh));
}

aclError VirtualMemory::Map(uintptr_t addr, uint64_t bytes, uint64_t handle) {
  std::lock_guard lock(mu_);
  auto memory = handles_.find(handle);
  if (memory == handles_.end()) {
    return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "no such handle of physical memory (freed?)");
  }
  auto found = Around(addr);
  if (found == reservations_.end() || addr - found->first + bytes > found->second.bytes) {
    return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "%p + %llu is not inside reserved addresses", Pointer(addr),
                  static_cast<unsigned long long>(bytes));
  }
  if (bytes != memory->second->bytes) {
    return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "size %llu is not that of the physical memory, %llu",
                  static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(memory->second->bytes));
  }
  Reservation& reservation = found->second;
  auto after = reservation.pieces.lower_bound(addr);
  bool taken = PieceAround(reservation, addr) != reservation.pieces.end() ||
               (after != reservation.pieces.end() && after->first < addr + bytes);
  if (taken) return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "something is mapped at %p already", Pointer(addr));
  // Imported memory is reachable for the devices of the importer; its own device always is.
  reservation.pieces[addr] = {memory->second, memory->second->import != nullptr ? UINT64_MAX : 0};
  Rebuild(reservation);
  return ACL_SUCCESS;
}

aclError VirtualMemory::Unmap(uintptr_t addr) {
  std::shared_ptr<Physical> last;  // ends after the lock
  std::lock_guard lock(mu_);
  auto found = Around(addr);
  auto piece = found == reservations_.end() ? Pieces::iterator{} : found->second.pieces.find(addr);
  if (found == reservations_.end() || piece == found->second.pieces.end()) {
    return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "no mapping begins at %p", Pointer(addr));
  }
  if (uint32_t tasks = TasksOn(found->second, addr, piece->second.memory->bytes)) {
    aclError code = Strict(Rule::kM2, ACL_ERROR_RT_PARAM_INVALID, "%u queued tasks still use what is mapped at %p",
                           tasks, Pointer(addr));
    if (code != ACL_SUCCESS) return code;
  }
  last = std::move(piece->second.memory);
  found->second.pieces.erase(piece);
  Rebuild(found->second);
  return ACL_SUCCESS;
}

uint32_t VirtualMemory::TasksAt(uintptr_t addr) {
  std::lock_guard lock(mu_);
  auto found = Around(addr);
  if (found == reservations_.end()) return 0;
  auto piece = found->second.pieces.find(addr);
  return piece == found->second.pieces.end() ? 0 : TasksOn(found->second, addr, piece->second.memory->bytes);
}

aclError VirtualMemory::SetAccess(uintptr_t addr, uint64_t bytes, int device, bool allowed) {
  std::lock_guard lock(mu_);
  auto found = Around(addr);
  std::vector<Piece*> pieces;
  uintptr_t at = addr;
  while (found != reservations_.end() && at < addr + bytes) {
    auto piece = found->second.pieces.find(at);
    if (piece == found->second.pieces.end()) break;
    pieces.push_back(&piece->second);
    at += piece->second.memory->bytes;
  }
  if (at != addr + bytes) {
    return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "%p + %llu is not exactly what some mappings cover",
                  Pointer(addr), static_cast<unsigned long long>(bytes));
  }
  for (Piece* piece : pieces) {
    uint64_t bit = 1ULL << device;
    piece->reach = allowed ? piece->reach | bit : piece->reach & ~bit;
  }
  Rebuild(found->second);
  return ACL_SUCCESS;
}

aclError VirtualMemory::GetAccess(uintptr_t addr, int device, bool* allowed) {
  std::lock_guard lock(mu_);
  auto found = Around(addr);
  auto piece = found == reservations_.end() ? Pieces::iterator{} : PieceAround(found->second, addr);
  if (found == reservations_.end() || piece == found->second.pieces.end()) {
    return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "no physical memory is mapped at %p", Pointer(addr));
  }
  *allowed = device == piece->second.memory->device || (piece->second.reach >> device & 1) != 0;
  return ACL_SUCCESS;
}

aclError VirtualMemory::Export(uint64_t handle, bool open_to_all, ShareKey* key) {
  std::lock_guard lock(mu_);
  auto found = handles_.find(handle);
  if (found == handles_.end()) {
    return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "no such handle of physical memory (freed?)");
  }
  Physical& memory = *found->second;
  if (memory.import != nullptr || memory.exported) {
    return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "the physical memory is imported, or exported already");
  }
  if (Offer(memory.pool.shared(), ShareKind::kPhysical, memory.extents, memory.huge, open_to_all, key) !=
      ShareAnswer::kDone) {
    return Fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "too many shares, or pieces of one physical memory");
  }
  memory.exported = *key;
  return ACL_SUCCESS;
}

void VirtualMemory::DropDevice(int device) {
  std::vector<std::shared_ptr<Physical>> gone;  // end after the lock
  std::lock_guard lock(mu_);
  for (auto& [base, reservation] : reservations_) {
    size_t before = gone.size();
    std::erase_if(reservation.pieces, [&](auto& entry) {
      bool goes = reservation.device == device || entry.second.memory->device == device;
      if (goes) gone.push_back(std::move(entry.second.memory));
      return goes;
    });
    if (gone.size() > before) Rebuild(reservation);
  }
  std::erase_if(reservations_, [&](const auto& entry) { return entry.second.device == device; });
  std::erase_if(handles_, [&](auto& entry) {
    bool goes = entry.second->device == device;
    if (goes) gone.push_back(std::move(entry.second));
    return goes;
  });
}

void VirtualMemory::AddLeaks(int device, std::vector<Leak>* leaks) {
  std::lock_guard lock(mu_);
  for (const auto& [handle, memory] : handles_) {
    if (memory->device == device) leaks->push_back({"physical memory", device, handle, memory->bytes});
  }
  for (const auto& [base, reservation] : reservations_) {
    if (reservation.device == device) leaks->push_back({"reserved addresses", device, base, reservation.bytes});
  }
}

}  // namespace aclemu
