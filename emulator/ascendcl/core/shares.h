// Memory that one process offers to others, and the hold of those who took it. Needs ACLEMU_DIR. Thread safe.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/ranges.h"
#include "core/shared_device.h"

namespace aclemu {

struct ShareKey {
  int physical = 0;    // device
  uint32_t index = 0;  // in Control::shares
  uint64_t nonce = 0;  // 40 bits, never 0
  bool operator==(const ShareKey&) const = default;
};

constexpr size_t kKeyChars = 64;
std::string ToText(const ShareKey& key);  // kKeyChars printable characters
std::optional<ShareKey> FromText(const char* text, size_t chars);
uint64_t ToNumber(const ShareKey& key);
std::optional<ShareKey> FromNumber(uint64_t number);

// What a process imported. The memory stays for as long as this lives, even if its owner goes.
struct Import {
  SharedDevice& device;
  ShareKey key;
  uint64_t bytes = 0;
  bool huge = false;
  std::vector<Extent> extents;
  bool held = false;

  explicit Import(SharedDevice& on, const ShareKey& k) : device(on), key(k) {}
  ~Import();
  Import(const Import&) = delete;
  Import& operator=(const Import&) = delete;
  bool OwnerGone() const { return device.control().shares[key.index].state.load() != Share::kLive; }
};

enum class ShareAnswer {
  kDone,
  kUnknown,     // no such offer (any more)
  kInvisible,   // of a device this process cannot see
  kNotAllowed,  // the caller's pid is not on the list
  kOwn,         // the caller's own offer
  kTwice,       // the caller has it already
  kFull         // no room in a table
};

ShareAnswer Offer(SharedDevice& device, ShareKind kind, const std::vector<Extent>& extents, bool huge, bool open_to_all,
                  ShareKey* key);
// Only for the one who offers. Each call adds to the list.
ShareAnswer AllowPids(const ShareKey& key, ShareKind kind, const int32_t* pids, size_t count);
ShareAnswer Take(const ShareKey& key, ShareKind kind, std::shared_ptr<Import>* out);
// Ends an own offer. When somebody holds the memory: nothing happens, or with force it is handed on to them, and goes
// when the last one lets go.
enum class Withdrawal { kEnded, kStillHeld, kHandedOn };
Withdrawal Withdraw(const ShareKey& key, bool force);

// The IPC keys of this process: what it exported and what it imported. Thread safe.
class IpcKeys {
 public:
  static IpcKeys& Get();

  struct Export {
    ShareKey key;
    std::weak_ptr<Range> block;
    int device;
    uintptr_t begin;
    uint64_t bytes;
  };

  void AddExport(const Export& exported);
  bool IsExport(const ShareKey& key);
  // Keys whose memory overlaps.
  std::vector<ShareKey> ExportsIn(uintptr_t begin, uint64_t bytes);
  // Ends an export; false, and it stays, when others hold the memory and force is not set.
  bool EndExport(const ShareKey& key, bool force);

  void AddImport(const ShareKey& key, int device, uintptr_t base);
  uintptr_t ImportBase(const ShareKey& key);  // 0 when there is none
  void RemoveImport(const ShareKey& key);

  // Before the blocks of a device go.
  void DropDevice(int device);

 private:
  struct Imported {
    ShareKey key;
    int device;
    uintptr_t base;
  };
  std::mutex mu_;
  std::vector<Export> exports_;
  std::vector<Imported> imports_;
};

}  // namespace aclemu
