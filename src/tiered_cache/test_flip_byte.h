// Damages a stored block, on whatever kind of memory it lies.
#pragma once

#include <gtest/gtest.h>

#include "tiered_cache/data_copier.h"
#include "tiered_cache/metadata_entry.h"

namespace mooncake {

inline void FlipByte(const AllocationHandle& block, size_t offset, const DataCopier& copier) {
  std::byte byte{};
  const DataSource outside = DataSource::Host(&byte, 1);
  const auto inside = Slice(block->data, offset, 1);
  ASSERT_TRUE(inside) << inside.error().ToString();
  ASSERT_TRUE(copier.Copy(*inside, outside));
  byte ^= std::byte{0x10};
  ASSERT_TRUE(copier.Copy(outside, *inside));
}

}  // namespace mooncake
