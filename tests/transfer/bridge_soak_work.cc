// What workers of the soak do: transfers with known bytes, and what they may end as.
#include <algorithm>
#include <thread>

#include "device/acl/test_emulator_probe.h"
#include "transfer/bridge_soak.h"
#include "transfer/pattern.h"

namespace mooncake::transfer_test {
namespace {

using std::chrono::seconds;

size_t RandomLength(std::mt19937_64& random, size_t largest) {
  return std::min(largest, static_cast<size_t>(random() % (size_t{1} << (random() % 30))));
}

}  // namespace

void BridgeSoak::Paint(Worker& worker, const Area& area, size_t offset, size_t length, uint64_t seed) {
  const std::span bytes(worker.bytes.data(), length + 2 * kMargin);
  Fill(bytes, seed, offset);
  EmulatorProbe::Poke(area.at(offset) - kMargin, bytes);
}

// Also of the margins, which are never a transfer's.
void BridgeSoak::Expect(Worker& worker, const Area& area, size_t offset, size_t length, uint64_t seed,
                        const char* what) {
  const std::span bytes(worker.bytes.data(), length + 2 * kMargin);
  EmulatorProbe::Peek(area.at(offset) - kMargin, bytes);
  if (const auto same = Check(bytes, seed, offset); !same) {
    Report(
        fmt::format("{}, [{}, +{}) of NPU {}: {}", what, offset, length, area.block.device_id, same.error().message()));
  }
}

BridgeSoak::Ended BridgeSoak::Judge(const Move& move, const Status& error, bool asked, bool lost_before, bool quiet) {
  const int32_t device = move.area->block.device_id;
  const ErrorCode code = error.code();
  if (lost_before || npu_->DeviceLost(device)) {
    ++counts_.lost;
    // What was known before says so, unless the peer is asked for first and is away.
    if (!lost_before || !quiet || code == ErrorCode::DEVICE_NOT_FOUND) return Ended::kExcused;
  } else if (asked && (code == ErrorCode::TRANSFER_CANCELED || code == ErrorCode::TRANSFER_TIMEOUT ||
                       code == ErrorCode::ADDRESS_NOT_REGISTERED)) {  // the last: while it was looked up again
    ++counts_.asked;
    return Ended::kAsked;
  } else if (!quiet) {
    ++counts_.excused;
    return Ended::kExcused;
  }
  Report(fmt::format("{} of {} B with NPU {}{}: {}", move.opcode == TransferOpcode::kRead ? "read" : "write",
                     move.length, device, asked ? ", to be ended early" : "", error.ToString()));
  return Ended::kWrong;
}

BridgeSoak::Ended BridgeSoak::Try(Worker& worker, const Move& move) {
  std::mt19937_64& random = worker.random;
  const uint64_t copies = copies_.now();
  const bool lost_before = npu_->DeviceLost(move.area->block.device_id);
  std::vector<size_t> cuts = {0, move.length};
  for (size_t i = random() % 20; i > 0; --i) cuts.push_back(random() % (move.length + 1));
  std::ranges::sort(cuts);
  std::vector<TransferRequest> requests;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    requests.push_back({.opcode = move.opcode,
                        .local = move.area->at(move.offset + cuts[i]),
                        .target = move.target,
                        .target_address = move.address + cuts[i],
                        .length = cuts[i + 1] - cuts[i]});
  }
  std::ranges::shuffle(requests, random);
  const bool short_deadline = random() % 12 == 0;
  const bool cancel = random() % 12 == 0;
  const Duration patience = short_deadline ? Duration(std::chrono::microseconds(random() % 20'000)) : seconds(60);
  const auto run = [&]() -> Result<void> {
    const BatchId batch = MC_TRY(engine_->AllocateBatch(requests.size()));
    auto submitted = engine_->Submit(batch, requests, {.deadline = Deadline::After(patience)});
    if (submitted && cancel) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      submitted = engine_->Cancel(batch);
    }
    const auto status = engine_->Wait(batch, Soon());
    MC_TRY(engine_->FreeBatch(batch));
    MC_TRY(std::move(submitted));
    if (!status) return std::unexpected(status.error());
    if (status->state != TransferState::kCompleted) return std::unexpected(status->error);
    return {};
  };
  const Result<void> result = run();
  if (result) {
    counts_.requests += requests.size();
    counts_.bytes += move.length;
    return Ended::kWell;
  }
  const bool quiet = copies_.QuietSince(copies) && move.place->epoch.QuietSince(move.peer_epoch);
  return Judge(move, result.error(), short_deadline || cancel, lost_before, quiet);
}

void BridgeSoak::ReadConstant(Worker& worker, Area& area, Place& place) {
  std::mt19937_64& random = worker.random;
  const size_t length = RandomLength(random, area.share);
  const size_t offset = random() % (area.share - length + 1);
  const size_t from = random() % (kLargest - length + 1);
  const uint64_t before = random();
  Paint(worker, area, offset, length, before);
  Move move{TransferOpcode::kRead, &area, &place, kInvalidSegment, 0, offset, length, place.epoch.now()};
  {
    std::lock_guard lock(place.mutex);
    move.target = place.target;
    move.address = place.constant + from;
  }
  if (Try(worker, move) != Ended::kWell) {
    const uint64_t after = random();
    Paint(worker, area, offset, length, after);
    area.left = Area::Left{offset, length, after};
    return;
  }
  const std::span bytes(worker.bytes.data(), length + 2 * kMargin);
  EmulatorProbe::Peek(area.at(offset) - kMargin, bytes);
  const auto inside = Check(bytes.subspan(kMargin, length), kConstantSeed, from);
  const auto below = Check(bytes.first(kMargin), before, offset);
  const auto above = Check(bytes.last(kMargin), before, offset + kMargin + length);
  for (const auto& part : {inside, below, above}) {
    if (!part) Report(fmt::format("read of {} B to NPU {}: {}", length, area.block.device_id, part.error().message()));
  }
}

void BridgeSoak::WriteAndReadBack(Worker& worker, Area& area, size_t peer) {
  std::mt19937_64& random = worker.random;
  const size_t slot = random() % SlotsOf(worker.number);
  TimePoint& rested = worker.rested[peer][slot];
  Place& place = places_[peer];
  if (SteadyClock::Instance().Now() < rested) return ReadConstant(worker, area, place);
  const size_t length = RandomLength(random, area.share);
  const size_t offset = random() % (area.share - length + 1);
  const uint64_t seed = random();
  Paint(worker, area, offset, length, seed);
  Move move{TransferOpcode::kWrite, &area, &place, kInvalidSegment, 0, offset, length, place.epoch.now()};
  {
    std::lock_guard lock(place.mutex);
    move.target = place.target;
    move.address = place.slots[worker.number] + slot * area.share + offset;
  }
  const Ended written = Try(worker, move);
  Expect(worker, area, offset, length, seed, "the source of a write");
  if (written != Ended::kWell) {
    rested = SteadyClock::Instance().Now() + kRest;
    area.left = Area::Left{offset, length, seed};
    return;
  }
  // Around it everything is as for the write, so that the margins tell.
  std::vector<std::byte> other(length);
  Fill(other, ~seed);
  if (length > 0) EmulatorProbe::Poke(area.at(offset), other);
  move.opcode = TransferOpcode::kRead;
  if (Try(worker, move) != Ended::kWell) {
    Paint(worker, area, offset, length, ~seed);
    area.left = Area::Left{offset, length, ~seed};
    return;
  }
  if (place.epoch.QuietSince(move.peer_epoch)) Expect(worker, area, offset, length, seed, "written and read back");
}

void BridgeSoak::OneRound(Worker& worker) {
  Area& area = worker.areas[worker.random() % worker.areas.size()];
  if (const auto left = std::exchange(area.left, std::nullopt)) {
    Expect(worker, area, left->offset, left->length, left->seed, "after a request that had ended");
  }
  const size_t peer = worker.random() % kPeers;
  if (places_[peer].epoch.now() % 2 != 0 && worker.random() % 8 != 0) return;  // now and then also when it is away
  switch (worker.random() % 16) {
    case 0:
      return Register(worker, area);
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 6:
    case 7:
      return ReadConstant(worker, area, places_[peer]);
    default:
      return WriteAndReadBack(worker, area, peer);
  }
}

// Out and in again; a lost device's memory stays in.
void BridgeSoak::Register(Worker& worker, Area& area) {
  const int32_t device = area.block.device_id;
  if (npu_->DeviceLost(device)) return;
  const auto gone = engine_->UnregisterMemory(area.at(0));
  const auto back = engine_->RegisterMemory(area.at(0), area.share);
  if (!gone) Report(fmt::format("unregistering memory of NPU {}: {}", device, gone.error().ToString()));
  if (back) return;
  // Lost meanwhile: then it is not this worker's any more.
  const bool lost = back.error().code() == ErrorCode::DEVICE_NOT_FOUND && npu_->DeviceLost(device);
  if (!lost) return Report(fmt::format("registering memory of NPU {}: {}", device, back.error().ToString()));
  if (const auto freed = npu_->Free(area.block); !freed) Report(freed.error().ToString());
  std::erase_if(worker.areas, [&](const Area& one) { return &one == &area; });
}

Result<void> BridgeSoak::MakeAreas(Worker& worker) {
  const size_t share = ShareOf(worker.number);
  worker.bytes.resize(share + 2 * kMargin);
  for (int32_t device = 0; device < (worker.number == 0 ? 1 : kDevices); ++device) {
    const int32_t chosen = worker.number == 0 ? static_cast<int32_t>(worker.random() % kDevices) : device;
    MC_TRY(npu_->OpenDevice(chosen));
    const AscendUnifiedPointer block = MC_TRY(npu_->Allocate(chosen, share + 2 * kMargin));
    const Area area{.block = block, .share = share, .left = std::nullopt};
    if (const auto registered = engine_->RegisterMemory(area.at(0), share); !registered) {
      MC_TRY(npu_->Free(block));
      return registered;
    }
    worker.areas.push_back(area);
  }
  return {};
}

void BridgeSoak::GiveBack(Worker& worker) {
  for (const Area& area : worker.areas) {
    const auto gone = engine_->UnregisterMemory(area.at(0));
    const auto freed = npu_->Free(area.block);
    if (!gone) Report(gone.error().ToString());
    if (!freed) Report(freed.error().ToString());
  }
}

void BridgeSoak::Work(size_t number, uint64_t seed) {
  Worker worker{.number = number, .random = std::mt19937_64(seed), .areas = {}, .bytes = {}};
  const auto made = MakeAreas(worker);
  if (!made) Report(made.error().ToString());
  ++ready_;
  ready_.notify_all();
  while (made && !worker.areas.empty() && !Stopping()) OneRound(worker);
  GiveBack(worker);
}

}  // namespace mooncake::transfer_test
