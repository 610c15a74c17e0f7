// Memory of another process of this host, mapped here.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "common/executor.h"
#include "device/memory_range.h"
#include "transfer_engine/transport/local/piecewise_copy.h"
#include "transfer_engine/transport/shm/shm_socket.h"

namespace mooncake::shm {

// A whole memfd. Any thread.
class MappedFile {
 public:
  // Refuses what could become a bus error under us: anything but a memfd that is sealed against shrinking. (A hole that
  // the owner punches reads as zeros.)
  static Result<std::shared_ptr<MappedFile>> Map(const Fd& fd);
  MappedFile(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

  // Takes the page faults of a range now: a little of it at once, the rest on the workers as far as they have room.
  // Only of pages that the owner has in memory: others would be allocated.
  static void Populate(const std::shared_ptr<MappedFile>& file, size_t offset, size_t length, Executor& workers);

 private:
  void PopulatePiece(size_t begin, size_t end);

  std::byte* const base_;
  const size_t bytes_;
};

// Device and inode: which memfd it is, however it came here.
Result<std::pair<uint64_t, uint64_t>> FileIdOf(const Fd& fd);

// Sends the owner its answer when the last of the regions that have it is gone.
class Acknowledgement {
 public:
  Acknowledgement(std::shared_ptr<Socket> socket, uint64_t revocation)
      : socket_(std::move(socket)), revocation_(revocation) {}
  ~Acknowledgement();
  Acknowledgement(const Acknowledgement&) = delete;
  Acknowledgement& operator=(const Acknowledgement&) = delete;

 private:
  const std::shared_ptr<Socket> socket_;
  const uint64_t revocation_;
};

// A region that a peer has handed out: a mapped file, or imported NPU memory. Whoever copies holds it; the socket stays
// open as long, so that the peer sees the connection end only after the last copy.
class MappedRegion final : public RemoteMemory {
 public:
  // The region is [address, +length) in the peer and `memory`, equally long, here: as long as `backing` lives.
  MappedRegion(std::shared_ptr<Socket> socket, std::shared_ptr<const void> backing, MemoryRange memory,
               uint64_t address)
      : socket_(std::move(socket)), backing_(std::move(backing)), memory_(memory), address_(address) {}

  Result<void> Usable() const override;
  // ADDRESS_NOT_REGISTERED unless the peer's [address, +length) lies inside.
  Result<MemoryRange> At(uint64_t address, uint64_t length) const;
  // By somebody who holds the region, once.
  void Revoke(std::shared_ptr<Acknowledgement> acknowledgement);

 private:
  // Destroyed last, after the memory is let go of.
  std::shared_ptr<Acknowledgement> acknowledgement_;
  std::atomic<bool> revoked_{false};
  const std::shared_ptr<Socket> socket_;
  const std::shared_ptr<const void> backing_;
  const MemoryRange memory_;
  const uint64_t address_;
};

}  // namespace mooncake::shm
