// One request after the other, through windows of blocks.
#include "replay/replayer.h"

#include <algorithm>

#include "replay/block_content.h"

namespace mooncake::replay {
namespace {

constexpr int kMaxLookupsFailedInARow = 3;
constexpr uint64_t kMaxDescribed = 10;

size_t WindowBlocks(const ReplayOptions& options) {
  MC_CHECK(options.block_bytes > 0 && options.window_blocks > 0);
  return std::clamp<size_t>(options.window_bytes / options.block_bytes, 1, options.window_blocks);
}

}  // namespace

Replayer::Replayer(RealClient& client, ReplayOptions options, IdealLru ideal, Report report)
    : client_(client),
      options_(std::move(options)),
      window_(WindowBlocks(options_)),
      ideal_(std::move(ideal)),
      report_(std::move(report)),
      memory_(window_ * options_.block_bytes) {}

std::span<std::byte> Replayer::Slot(size_t index) {
  return std::span(memory_).subspan(index * options_.block_bytes, options_.block_bytes);
}

void Replayer::Describe(const std::string& line) {
  if (++described_ <= kMaxDescribed) report_(line);
  if (described_ == kMaxDescribed) report_("further failures are counted, not described");
}

Result<void> Replayer::Play(const TraceRequest& request) {
  const std::span<const uint64_t> ids = request.block_ids;
  keys_.clear();
  for (const uint64_t id : ids) keys_.push_back(options_.key_prefix + std::to_string(id));
  ideal_.Request(ids);
  ++counts_.requests;
  counts_.blocks += ids.size();

  const auto existed = LookUp();
  if (!existed) {
    ++counts_.lookup_failures;
    Describe("look-up: " + existed.error().ToString());
    if (++lookups_failed_in_a_row_ < kMaxLookupsFailedInARow) return {};
    return Annotate(existed.error(), fmt::format("{} look-ups in a row failed", kMaxLookupsFailedInARow));
  }
  lookups_failed_in_a_row_ = 0;
  const auto hole = std::find(existed->begin(), existed->end(), false);
  const size_t prefix = GetPrefix(ids.first(static_cast<size_t>(hole - existed->begin())));
  counts_.hits += prefix;
  PutFrom(ids, prefix, *existed);
  return {};
}

Result<std::vector<bool>> Replayer::LookUp() {
  std::vector<bool> existed;
  for (auto& result : client_.BatchExist(keys_)) existed.push_back(MC_TRY(std::move(result)));
  return existed;
}

size_t Replayer::GetPrefix(std::span<const uint64_t> ids) {
  for (size_t first = 0; first < ids.size(); first += window_) {
    const size_t count = std::min(window_, ids.size() - first);
    std::vector<GetItem> items;
    items.reserve(count);
    for (size_t i = 0; i < count; ++i) items.push_back({keys_[first + i], MemoryRange(Slot(i))});
    const auto results = client_.BatchGetInto(items);
    std::optional<size_t> end;
    for (size_t i = 0; i < count; ++i) {  // whatever was read is checked, also behind the prefix
      const BlockState state = Settle(ids[first + i], Slot(i), results[i]);
      if (state != BlockState::kHit && !end) end = first + i;
      if (end || state != BlockState::kHit) continue;
      ++(results[i]->local ? counts_.local_hits : counts_.remote_hits);
      ++counts_.hits_by_type[std::min<size_t>(static_cast<size_t>(results[i]->type), counts_.hits_by_type.size() - 1)];
    }
    if (end) return *end;
  }
  return ids.size();
}

Replayer::BlockState Replayer::Settle(uint64_t id, std::span<const std::byte> block, const Result<ObjectInfo>& result) {
  if (!result) {
    if (result.error().code() == ErrorCode::OBJECT_NOT_FOUND) {
      ++counts_.vanished;
    } else {
      ++counts_.get_failures;
      Describe(fmt::format("get of block {}: {}", id, result.error().ToString()));
    }
    return BlockState::kMiss;
  }
  counts_.bytes_read += result->size;
  if (!options_.verify) return BlockState::kHit;
  ++counts_.verified;
  std::string wrong;
  if (result->size != block.size()) {
    wrong = fmt::format("block {}: {} B, not {} B", id, result->size, block.size());
  } else if (const auto at = FindMismatch(id, block)) {
    wrong = DescribeMismatch(id, block, *at);
  }
  if (wrong.empty()) return BlockState::kHit;
  ++counts_.verification_errors;
  Describe("WRONG BYTES: " + wrong);
  return BlockState::kBad;
}

void Replayer::PutFrom(std::span<const uint64_t> ids, size_t first, const std::vector<bool>& existed) {
  for (; first < ids.size(); first += window_) {
    const size_t count = std::min(window_, ids.size() - first);
    std::vector<PutItem> items;
    for (size_t i = 0; i < count; ++i) {
      FillBlock(ids[first + i], Slot(i));
      items.push_back({keys_[first + i], MemoryRange(Slot(i))});
    }
    const auto results = client_.BatchPut(items);
    for (size_t i = 0; i < count; ++i) {
      if (!results[i]) {
        ++counts_.put_failures;
        Describe(fmt::format("put of block {}: {}", ids[first + i], results[i].error().ToString()));
      } else if (existed[first + i]) {
        ++counts_.puts_present;
      } else {
        ++counts_.puts;
        counts_.bytes_written += options_.block_bytes;
      }
    }
  }
}

}  // namespace mooncake::replay
