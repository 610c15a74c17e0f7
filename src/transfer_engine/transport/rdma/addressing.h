// How RDMA ports are addressed: which entry of the GID table is used, and GIDs as text.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace mooncake::rdma {

using Gid = std::array<uint8_t, 16>;

enum class GidKind : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

struct GidEntry {
  Gid gid{};
  GidKind kind = GidKind::kInfiniBand;
};

struct GidChoice {
  int index = 0;
  Gid gid{};
};

// Of a table with `size` entries; `read` gives an entry or nullopt for one that is empty. Best first: RoCEv2 with an
// IPv4 address, RoCEv2 with a global IPv6 one, entry 0 (InfiniBand), any other. `wanted` >= 0 takes that one.
// DEVICE_NOT_FOUND when there is none, or not the wanted one.
Result<GidChoice> ChooseGid(int size, const std::function<std::optional<GidEntry>(int index)>& read, int wanted);

// "fe:80:..:01": sixteen pairs of digits.
std::string FormatGid(const Gid& gid);
std::optional<Gid> ParseGid(std::string_view text);
// Leading bits that both have in common, 0 to 128.
int CommonPrefix(const Gid& a, const Gid& b);

}  // namespace mooncake::rdma
