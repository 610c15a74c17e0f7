// Choice among GID table entries.
#include "transfer_engine/transport/rdma/addressing.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include <fmt/ranges.h>

namespace mooncake::rdma {
namespace {

bool IsIpv4Mapped(const Gid& gid) {
  constexpr std::array<uint8_t, 12> kPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kPrefix.begin(), kPrefix.end(), gid.begin());
}

bool IsLinkLocal(const Gid& gid) {
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

int Rank(int index, const GidEntry& entry) {
  if (entry.kind == GidKind::kRoceV2 && IsIpv4Mapped(entry.gid)) return 4;
  if (entry.kind == GidKind::kRoceV2 && !IsLinkLocal(entry.gid)) return 3;
  return index == 0 ? 2 : 1;
}

}  // namespace

Result<GidChoice> ChooseGid(int size, const std::function<std::optional<GidEntry>(int index)>& read, int wanted) {
  if (wanted >= 0) {
    const std::optional<GidEntry> entry = wanted < size ? read(wanted) : std::nullopt;
    if (entry) return GidChoice{.index = wanted, .gid = entry->gid};
    return Error(ErrorCode::DEVICE_NOT_FOUND, "GID table entry {} of {} is empty or absent", wanted, size);
  }
  GidChoice best;
  int best_rank = 0;
  for (int index = 0; index < size; ++index) {
    const std::optional<GidEntry> entry = read(index);
    if (!entry || entry->gid == Gid{}) continue;
    const int rank = Rank(index, *entry);
    if (rank <= best_rank) continue;
    best = {.index = index, .gid = entry->gid};
    best_rank = rank;
  }
  if (best_rank == 0) return Error(ErrorCode::DEVICE_NOT_FOUND, "none of the {} GID table entries is in use", size);
  return best;
}

std::string FormatGid(const Gid& gid) {
  return fmt::format("{:02x}", fmt::join(gid, ":"));
}

std::optional<Gid> ParseGid(std::string_view text) {
  Gid gid{};
  if (text.size() != gid.size() * 3 - 1) return std::nullopt;
  for (size_t i = 0; i < gid.size(); ++i) {
    const char* at = text.data() + i * 3;
    const auto [end, error] = std::from_chars(at, at + 2, gid[i], 16);
    if (error != std::errc() || end != at + 2 || (i + 1 < gid.size() && *end != ':')) return std::nullopt;
  }
  return gid;
}

int CommonPrefix(const Gid& a, const Gid& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return static_cast<int>(i * 8) + std::countl_zero(static_cast<uint8_t>(a[i] ^ b[i]));
  }
  return 128;
}

}  // namespace mooncake::rdma
