// Put, get and removal: local tiers first, then other clients.
#include <cstring>
#include <unordered_map>

#include "client/real_client.h"
#include "common/log.h"

namespace mooncake {
namespace {

std::unexpected<Status> Closed() {
  return std::unexpected(Status(ErrorCode::SHUTTING_DOWN, "the store is closed"));
}

Result<void> CheckKey(std::string_view key) {
  if (key.empty()) return Error(ErrorCode::INVALID_PARAMS, "empty key");
  return {};
}

// The object's place in a target that may be larger.
Result<MemoryRange> FitTarget(std::string_view key, const MemoryRange& target, uint64_t size) {
  if (size <= SizeOf(target)) return SubRange(target, 0, size);
  return Error(ErrorCode::INVALID_PARAMS, "key '{}' has {} B, the buffer {} B", key, size, SizeOf(target));
}

bool IsMiss(const Status& status) {
  return status.code() == ErrorCode::OBJECT_NOT_FOUND;
}

}  // namespace

void RealClient::CountGet(const Traffic& traffic, const Result<ObjectInfo>& result) {
  traffic.requests->Add();
  if (result) {
    traffic.hits->Add();
    traffic.bytes->Add(result->size);
  } else {
    (IsMiss(result.error()) ? traffic.misses : traffic.failures)->Add();
  }
}

void RealClient::CountPut(const Traffic& traffic, const Result<void>& result, uint64_t size) {
  traffic.requests->Add();
  if (result) {
    traffic.bytes->Add(size);
  } else {
    traffic.failures->Add();
  }
}

// --- put ---

void RealClient::PutLocal(const PutItem& item, CopyGroup& group, Deadline room_wait, Result<void>& result) {
  if (backend_->RecordUse(item.key)) return;
  const size_t size = SizeOf(item.value);
  const auto allocate = [&](std::optional<Deadline> wait_until) {
    return backend_->Allocate(size, std::nullopt, /*strict=*/false, wait_until);
  };
  // The blocks of this very batch may be what is in the way: they are finished before anything is waited for.
  auto handle = allocate(group.empty() ? std::optional(room_wait) : std::nullopt);
  if (!handle && handle.error().code() == ErrorCode::NO_AVAILABLE_HANDLE && !group.empty()) {
    group.Flush();
    handle = allocate(room_wait);
  }
  if (!handle) {
    result = std::unexpected(handle.error());
    return;
  }
  const MemoryRange block = AsMemoryRange((*handle)->data);
  group.Add(block, item.value, [this, &item, &result, written = std::move(*handle)](Result<void> copied) mutable {
    result = std::move(copied);
    if (!result) {
      backend_->ForgetIfLost(*written->tier);
      return;
    }
    const auto committed = backend_->Commit(item.key, std::move(written), {.only_if_absent = true});
    if (!committed && committed.error().code() != ErrorCode::OBJECT_ALREADY_EXISTS) {
      result = std::unexpected(committed.error());
    }
  });
}

// Turns success into an error where other clients could not read the key now: the master was not told, or it gave the
// key to another owner who does not answer.
void RealClient::AwaitVisible(std::span<const PutItem> items, std::vector<Result<void>>& results, Deadline deadline) {
  if (!announcer_->WaitDelivered(deadline)) {
    for (auto& result : results) {
      if (result) {
        result = Error(ErrorCode::RPC_FAIL, "stored here, but the master did not take the announcement in time");
      }
    }
    return;
  }
  std::vector<std::string> surplus;
  std::vector<size_t> positions;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!results[i] || backend_->Exist(items[i].key)) continue;
    surplus.emplace_back(items[i].key);
    positions.push_back(i);
  }
  if (surplus.empty() || health() == ClientHealth::DEGRADED) return;
  const auto confirmed = remote_->Confirm(surplus, deadline);
  for (size_t k = 0; k < surplus.size(); ++k) {
    if (confirmed[k]) continue;  // held there, or evicted or removed since it was stored
    results[positions[k]] =
        Annotate(confirmed[k].error(), fmt::format("key '{}' belongs to another client", surplus[k]));
  }
}

std::vector<Result<void>> RealClient::BatchPut(std::span<const PutItem> items) {
  std::shared_lock guard(closing_mutex_);
  if (closing_.load()) return std::vector<Result<void>>(items.size(), Closed());
  const Deadline deadline = NewDeadline();
  std::vector<Result<void>> results(items.size());
  std::vector<RemoteObjects::Write> writes;
  std::vector<size_t> remote_positions;
  std::unordered_map<std::string_view, size_t> first;  // position of a key's first value in the batch, which wins
  CopyGroup group;
  const Deadline room_wait = Deadline::After(kRoomWait);
  for (size_t i = 0; i < items.size(); ++i) {
    const PutItem& item = items[i];
    if (results[i] = CheckKey(item.key); !results[i]) continue;
    if (!first.try_emplace(item.key, i).second) continue;
    if (backend_ != nullptr) {
      PutLocal(item, group, room_wait, results[i]);
    } else {
      writes.push_back({.key = item.key, .value = item.value, .result = {}});
      remote_positions.push_back(i);
    }
  }
  if (!writes.empty()) {
    remote_->Put(writes, deadline);
    for (size_t k = 0; k < writes.size(); ++k) {
      results[remote_positions[k]] = std::move(writes[k].result);
      CountPut(remote_put_, results[remote_positions[k]], SizeOf(writes[k].value));
    }
  }
  group.Flush();
  if (backend_ != nullptr) {
    // A device that was lost meanwhile takes no more blocks: another tier may.
    for (const auto& [key, i] : first) {
      if (results[i] || results[i].error().code() != ErrorCode::DATA_COPY_FAILED || !backend_->AnyLost()) continue;
      results[i] = {};
      PutLocal(items[i], group, room_wait, results[i]);
    }
    group.Flush();
    for (const auto& [key, i] : first) CountPut(local_put_, results[i], SizeOf(items[i].value));
  }
  if (backend_ != nullptr && !options_.async_announce) AwaitVisible(items, results, deadline);
  for (size_t i = 0; i < items.size(); ++i) {
    if (const auto winner = first.find(items[i].key); winner != first.end() && winner->second != i)
      results[i] = results[winner->second];
    CountPut(total_put_, results[i], SizeOf(items[i].value));
  }
  return results;
}

// --- get ---

// What a failed read of a local block is to the caller: a miss when the block's device is gone.
Status RealClient::Unreadable(const AllocationEntry& block, const Status& error) {
  return backend_->ForgetIfLost(*block.tier) ? Status(ErrorCode::OBJECT_NOT_FOUND, {}) : error;
}

void RealClient::GetLocal(const GetItem& item, CopyGroup& group, Result<ObjectInfo>& result) {
  auto view = backend_->Get(item.key);
  if (!view) {
    result = std::unexpected(view.error());
    return;
  }
  const MemoryRange block = AsMemoryRange(view->handle->data);
  const auto target = FitTarget(item.key, item.target, SizeOf(block));
  if (!target) {
    result = std::unexpected(target.error());
    return;
  }
  group.Add(*target, block, [this, &result, read = std::move(view->handle)](Result<void> copied) {
    result = ObjectInfo{read->data.size(), read->data.type, /*local=*/true};
    if (!copied) result = std::unexpected(Unreadable(*read, copied.error()));
  });
}

std::vector<Result<ObjectInfo>> RealClient::BatchGetInto(std::span<const GetItem> items) {
  std::shared_lock guard(closing_mutex_);
  if (closing_.load()) return std::vector<Result<ObjectInfo>>(items.size(), Closed());
  std::vector<Result<ObjectInfo>> results(items.size());
  CopyGroup group;
  for (size_t i = 0; i < items.size(); ++i) {
    if (auto key = CheckKey(items[i].key); !key) {
      results[i] = std::unexpected(key.error());
    } else if (backend_ != nullptr) {
      GetLocal(items[i], group, results[i]);
    } else {
      results[i] = std::unexpected(Status(ErrorCode::OBJECT_NOT_FOUND, {}));
    }
  }
  group.Flush();
  std::vector<RemoteObjects::Read> reads;
  std::vector<size_t> positions;
  for (size_t i = 0; i < items.size(); ++i) {
    const GetItem& item = items[i];
    if (item.key.empty()) continue;
    if (backend_ != nullptr) CountGet(local_get_, results[i]);
    if (results[i] || !IsMiss(results[i].error())) continue;
    RemoteObjects::Read read{.key = item.key, .target = {}, .to_device = !IsHost(item.target)};
    read.target = [&item](uint64_t size) { return FitTarget(item.key, item.target, size); };
    reads.push_back(std::move(read));
    positions.push_back(i);
  }
  if (!reads.empty()) remote_->Get(reads, NewDeadline());
  for (size_t k = 0; k < reads.size(); ++k) {
    results[positions[k]] = std::move(reads[k].result);
    CountGet(remote_get_, results[positions[k]]);
  }
  for (const auto& result : results) CountGet(total_get_, result);
  return results;
}

std::vector<Result<ObjectBytes>> RealClient::BatchGet(std::span<const std::string> keys) {
  std::shared_lock guard(closing_mutex_);
  if (closing_.load()) return std::vector<Result<ObjectBytes>>(keys.size(), Closed());
  std::vector<Result<ObjectBytes>> results(keys.size(), std::unexpected(Status(ErrorCode::OBJECT_NOT_FOUND, {})));
  const auto make_room = [](uint64_t size) -> Result<ObjectBytes> {
    std::shared_ptr<std::byte[]> memory(new (std::nothrow) std::byte[size]);
    if (memory == nullptr) return Error(ErrorCode::NO_AVAILABLE_HANDLE, "no host memory for an object of {} B", size);
    return ObjectBytes{HostRange(memory.get(), size), memory, {}};
  };
  std::vector<RemoteObjects::Read> reads;
  std::vector<size_t> positions;
  CopyGroup group;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (auto key = CheckKey(keys[i]); !key) {
      results[i] = std::unexpected(key.error());
      continue;
    }
    if (backend_ != nullptr) {
      if (auto view = backend_->Get(keys[i])) {
        const DataSource& data = view->handle->data;
        const ObjectInfo info{data.size(), data.type, /*local=*/true};
        const MemoryRange block = AsMemoryRange(data);
        if (const auto* host = std::get_if<HostRange>(&block)) {
          results[i] = ObjectBytes{*host, view->handle, info};
        } else if (results[i] = make_room(data.size()); results[i]) {
          results[i]->info = info;
          group.Add(results[i]->bytes, block, [this, &result = results[i], read = view->handle](Result<void> copied) {
            if (!copied) result = std::unexpected(Unreadable(*read, copied.error()));
          });
        }
        continue;
      }
    }
    RemoteObjects::Read read{.key = keys[i], .target = {}};
    read.target = [&result = results[i], &make_room](uint64_t size) -> Result<MemoryRange> {
      result = make_room(size);
      if (!result) return std::unexpected(result.error());
      return MemoryRange(result->bytes);
    };
    reads.push_back(std::move(read));
    positions.push_back(i);
  }
  group.Flush();
  if (!reads.empty()) remote_->Get(reads, NewDeadline());
  for (size_t k = 0; k < reads.size(); ++k) {
    auto& result = results[positions[k]];
    CountGet(remote_get_, reads[k].result);
    if (!reads[k].result) {
      result = std::unexpected(reads[k].result.error());
    } else {
      result->info = *reads[k].result;
    }
  }
  for (const auto& result : results) {
    const auto info = result ? Result<ObjectInfo>(result->info) : std::unexpected(result.error());
    if (info && info->local) CountGet(local_get_, info);
    CountGet(total_get_, info);
  }
  return results;
}

// --- queries and removal ---

std::vector<Result<bool>> RealClient::BatchExist(std::span<const std::string> keys) {
  std::shared_lock guard(closing_mutex_);
  if (closing_.load()) return std::vector<Result<bool>>(keys.size(), Closed());
  std::vector<Result<bool>> results(keys.size(), false);
  std::vector<std::string> asked;
  std::vector<size_t> positions;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (auto key = CheckKey(keys[i]); !key) {
      results[i] = std::unexpected(key.error());
    } else if (backend_ != nullptr && backend_->Exist(keys[i])) {
      results[i] = true;
    } else {
      asked.push_back(keys[i]);
      positions.push_back(i);
    }
  }
  // Without a master only local keys can be read, so others do not exist for this caller.
  if (asked.empty() || (backend_ != nullptr && health() == ClientHealth::DEGRADED)) return results;
  auto remote = remote_->Exist(asked, NewDeadline());
  for (size_t k = 0; k < asked.size(); ++k) results[positions[k]] = std::move(remote[k]);
  return results;
}

Result<uint64_t> RealClient::GetSize(const std::string& key) {
  std::shared_lock guard(closing_mutex_);
  if (closing_.load()) return Closed();
  MC_TRY(CheckKey(key));
  if (backend_ != nullptr) {
    if (const auto view = backend_->Get(key, std::nullopt, /*record_access=*/false)) return view->handle->data.size();
  }
  return MC_TRY(remote_->Size(key, NewDeadline())).size;
}

Result<void> RealClient::Remove(const std::string& key) {
  std::shared_lock guard(closing_mutex_);
  if (closing_.load()) return Closed();
  MC_TRY(CheckKey(key));
  const Deadline deadline = NewDeadline();
  bool removed_here = false;
  if (backend_ != nullptr) {
    removed_here = backend_->Delete(key).has_value();
    if (!announcer_->WaitDelivered(deadline))
      return Error(ErrorCode::RPC_FAIL, "the master was not told in time that '{}' is removed", key);
    if (health() == ClientHealth::DEGRADED && removed_here) return {};
  }
  const Result<void> elsewhere = remote_->Remove(std::span(&key, 1), deadline)[0];
  if (!elsewhere && IsMiss(elsewhere.error()) && removed_here) return {};
  return elsewhere;
}

Result<uint64_t> RealClient::RemoveAll() {
  std::shared_lock guard(closing_mutex_);
  if (closing_.load()) return Closed();
  const Deadline deadline = NewDeadline();
  uint64_t removed = 0;
  if (backend_ != nullptr) {
    removed = backend_->RemoveAll();
    if (!announcer_->WaitDelivered(deadline))
      return Error(ErrorCode::RPC_FAIL, "the master was not told in time that everything is removed");
    if (health() == ClientHealth::DEGRADED) return removed;
  }
  return removed + MC_TRY(remote_->RemoveAll(deadline));
}

}  // namespace mooncake
