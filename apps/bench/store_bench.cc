// The measurements of `mooncake_bench store`.
#include "bench/store_bench.h"

#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>

#include "bench/child.h"
#include "bench/iperf.h"
#include "client/real_client.h"
#include "client/tier_factory.h"
#include "master/master_service.h"
#include "tiered_cache/tier_config.h"

namespace mooncake::bench {
namespace {

constexpr size_t kKiB = 1 << 10;
constexpr size_t kMiB = 1 << 20;
constexpr const char* kLoopback = "127.0.0.1";
constexpr size_t kBatchBytes = 16 * kMiB;  // of one batched call
constexpr Duration kStartBudget = std::chrono::seconds(30);

struct Sizes {
  size_t working_set;  // bytes, a multiple of 16 MiB
  size_t small_calls;  // of 4 KiB, one key each
  size_t master_keys;  // in the index
  size_t lookup_keys;  // asked for in one run

  size_t tier_bytes() const { return working_set + working_set / 4 + 64 * kMiB; }
};

Sizes SizesFor(const Host& host, bool quick) {
  if (quick) return {16 * kMiB, 100, 2'000, 4'000};
  // Beyond four times the cache neither side finds anything in it.
  const size_t least = std::max<size_t>(4 * host.llc_bytes, 64 * kMiB);
  return {(least + kBatchBytes - 1) / kBatchBytes * kBatchBytes, 4'000, 100'000, 500'000};
}

Result<std::unique_ptr<RealClient>> OpenClient(uint16_t master_port, uint64_t dram_bytes) {
  RealClientOptions options;
  options.local_hostname = kLoopback;
  options.master = {kLoopback, master_port};
  options.require_master = true;
  options.master_wait = std::chrono::seconds(5);
  if (dram_bytes > 0) {
    options.tiers = MC_TRY(ParseTieredBackendConfig(
        fmt::format(R"({{"tiers": [{{"type": "DRAM", "capacity": {}, "priority": 10}}]}})", dram_bytes), "bench",
        BuiltTierSupport()));
  }
  return RealClient::Open(std::move(options));
}

// Equal pieces of one buffer under keys of their own.
class Objects {
 public:
  Objects(std::span<std::byte> memory, size_t size, std::string_view prefix) {
    for (size_t at = 0; at + size <= memory.size(); at += size) {
      keys_.push_back(fmt::format("{}/{}", prefix, keys_.size()));
      pieces_.push_back(memory.subspan(at, size));
    }
  }
  size_t count() const { return keys_.size(); }
  const std::vector<std::string>& keys() const { return keys_; }
  std::span<std::byte> piece(size_t i) const { return pieces_[i]; }

  // The objects in order, `batch` a call.
  Result<void> Put(RealClient& client, size_t batch) const {
    std::vector<PutItem> items;
    for (size_t i = 0; i < count(); i += batch) {
      items.clear();
      for (size_t k = i; k < std::min(i + batch, count()); ++k) items.push_back({keys_[k], MemoryRange(pieces_[k])});
      for (auto& result : client.BatchPut(items)) MC_TRY(std::move(result));
    }
    return {};
  }
  Result<void> Get(RealClient& client, size_t batch) const {
    std::vector<GetItem> items;
    for (size_t i = 0; i < count(); i += batch) {
      items.clear();
      for (size_t k = i; k < std::min(i + batch, count()); ++k) items.push_back({keys_[k], MemoryRange(pieces_[k])});
      for (auto& result : client.BatchGetInto(items)) MC_TRY(std::move(result));
    }
    return {};
  }

 private:
  std::vector<std::string> keys_;
  std::vector<std::span<std::byte>> pieces_;
};

class StoreBench {
 public:
  StoreBench(const StoreBenchOptions& options, Host host)
      : options_(options), host_(std::move(host)), sizes_(SizesFor(host_, options.quick)) {}

  Result<StoreBenchResult> Run() {
    // Both before the first thread of this process.
    Child peer = MC_TRY(Child::Start({options_.self, "serve-as-peer", std::to_string(sizes_.tier_bytes())}));
    iperf_ = MC_TRY(Iperf::Start());
    host_.iperf3 = iperf_ ? "used" : "not installed: figures against it are left out";
    master_ = MC_TRY(MasterService::Open({.listen = {kLoopback, 0}}));
    user_.assign(sizes_.working_set, std::byte{1});
    other_.assign(sizes_.working_set, std::byte{2});
    MC_TRY(Local());
    MC_TRY(peer.WriteLine(std::to_string(master_->port())));
    if (MC_TRY(peer.ReadLine(Deadline::After(kStartBudget))) != "ready")
      return Error(ErrorCode::INTERNAL_ERROR, "the second process did not say that it is ready");
    MC_TRY(Remote());
    return StoreBenchResult{host_, figures_.Take()};
  }

 private:
  void Step(const std::string& what, int run) {
    if (options_.on_step) options_.on_step(fmt::format("{}: run {} of {}", what, run + 1, options_.runs));
  }
  void Record(const std::string& name, double value, const char* unit, const char* against = "") {
    figures_.Record(name, value, unit, against);
  }
  double WorkingSetGb() const { return static_cast<double>(sizes_.working_set) / 1e9; }

  Result<void> Local() {
    const auto client = MC_TRY(OpenClient(master_->port(), sizes_.tier_bytes()));
    const Objects large(user_, kMiB, "local/1m");
    MC_TRY(large.Put(*client, 1));  // touches the tier's memory
    for (int run = 0; run < options_.runs; ++run) {
      Step("local put and get, 1 MiB", run);
      MC_TRY(LocalLarge(*client, large));
    }
    const Objects small(std::span<std::byte>(user_).first(sizes_.small_calls * 4 * kKiB), 4 * kKiB, "local/4k");
    for (int run = 0; run < options_.runs; ++run) {
      Step("local put and get, 4 KiB", run);
      MC_TRY(client->RemoveAll());
      const double kilo = static_cast<double>(small.count()) / 1e3;
      Record("store.local_put_4k_kops", kilo / MC_TRY(Timed([&] { return small.Put(*client, 1); })), "kops");
      Record("store.local_get_4k_kops", kilo / MC_TRY(Timed([&] { return small.Get(*client, 1); })), "kops");
    }
    return {};
  }

  Result<void> LocalLarge(RealClient& client, const Objects& objects) {
    const size_t batch = kBatchBytes / kMiB;
    MC_TRY(client.RemoveAll());
    const double batch_put = MC_TRY(Timed([&] { return objects.Put(client, batch); }));
    MC_TRY(client.RemoveAll());
    const double put = MC_TRY(Timed([&] { return objects.Put(client, 1); }));
    const double get = MC_TRY(Timed([&] { return objects.Get(client, 1); }));
    const auto views = client.BatchGet(objects.keys());
    for (const auto& view : views) {
      if (!view) return std::unexpected(view.error());
    }
    // The very addresses, in the very order, of the put and the get. The tier gets the bytes it has already.
    const double move_in = Seconds([&] {
      for (size_t i = 0; i < objects.count(); ++i)
        std::memmove(views[i]->bytes.data(), objects.piece(i).data(), views[i]->bytes.size());
    });
    const double move_out = Seconds([&] {
      for (size_t i = 0; i < objects.count(); ++i)
        std::memmove(objects.piece(i).data(), views[i]->bytes.data(), views[i]->bytes.size());
    });
    Record("store.local_put_1m_gbps", WorkingSetGb() / put, "GB/s");
    Record("store.local_put_1m_kops", static_cast<double>(objects.count()) / 1e3 / put, "kops");
    Record("store.local_put_1m_vs_memmove", move_in / put, "ratio", "memmove");
    Record("store.local_batch_put_1m_vs_memmove", move_in / batch_put, "ratio", "memmove");
    Record("store.local_get_1m_gbps", WorkingSetGb() / get, "GB/s");
    Record("store.local_get_1m_kops", static_cast<double>(objects.count()) / 1e3 / get, "kops");
    Record("store.local_get_1m_vs_memmove", move_out / get, "ratio", "memmove");
    Record("store.memmove_1m_gbps", WorkingSetGb() / move_out, "GB/s");
    return {};
  }

  Result<void> Remote() {
    const auto client = MC_TRY(OpenClient(master_->port(), 0));
    for (const auto& [size, name] : {std::pair(kMiB, "1m"), std::pair(kBatchBytes, "16m")}) {
      const Objects objects(user_, size, fmt::format("remote/{}", name));
      MC_TRY(objects.Put(*client, 1));
      for (int run = 0; run < options_.runs; ++run) {
        Step(fmt::format("two processes, {}", name), run);
        MC_TRY(RemoteLarge(*client, objects, kBatchBytes / size, fmt::format("store.remote_{{}}{}", name)));
      }
      MC_TRY(client->RemoveAll());
    }
    MC_TRY(RemoteSmall(*client));
    return MasterLookups(*client);
  }

  // Batched calls of 16 MiB. `pattern` has a place for "put_" or nothing.
  Result<void> RemoteLarge(RealClient& client, const Objects& objects, size_t batch, const std::string& pattern) {
    const auto name = [&](const char* put, const char* what) { return fmt::format(fmt::runtime(pattern), put) + what; };
    MC_TRY(client.RemoveAll());
    const double put = MC_TRY(Timed([&] { return objects.Put(client, batch); }));
    const double get = MC_TRY(Timed([&] { return objects.Get(client, batch); }));
    const double move = Seconds([&] {
      for (size_t i = 0; i < objects.count(); ++i) {
        const auto piece = objects.piece(i);
        std::memmove(piece.data(), other_.data() + (piece.data() - user_.data()), piece.size());
      }
    });
    Record(name("", "_gbps"), WorkingSetGb() / get, "GB/s");
    Record(name("put_", "_gbps"), WorkingSetGb() / put, "GB/s");
    Record(name("", "_vs_memmove"), move / get, "ratio", "memmove");
    Record(name("put_", "_vs_memmove"), move / put, "ratio", "memmove");
    if (!iperf_) return {};
    const double iperf = MC_TRY(iperf_->Measure(host_.tcp_congestion));
    Record("store.iperf3_gbps", iperf, "GB/s");
    Record(name("", "_vs_iperf3"), WorkingSetGb() / get / iperf, "ratio", "iperf3");
    Record(name("put_", "_vs_iperf3"), WorkingSetGb() / put / iperf, "ratio", "iperf3");
    return {};
  }

  // One key a call, one thread.
  Result<void> RemoteSmall(RealClient& client) {
    const Objects objects(std::span<std::byte>(user_).first(sizes_.small_calls * 4 * kKiB), 4 * kKiB, "remote/4k");
    for (int run = 0; run < options_.runs; ++run) {
      Step("two processes, 4 KiB", run);
      MC_TRY(client.RemoveAll());
      std::vector<double> put_us;
      for (size_t i = 0; i < objects.count(); ++i) {
        const PutItem item{objects.keys()[i], MemoryRange(objects.piece(i))};
        const double seconds = MC_TRY(Timed([&] { return std::move(client.BatchPut({&item, 1})[0]); }));
        put_us.push_back(1e6 * seconds);
      }
      std::vector<double> get_us;
      const auto get_one = [&](size_t i) -> Result<void> {
        const GetItem item{objects.keys()[i], MemoryRange(objects.piece(i))};
        MC_TRY(std::move(client.BatchGetInto({&item, 1})[0]));
        return {};
      };
      double all = 0;
      for (size_t i = 0; i < objects.count(); ++i) {
        const double seconds = MC_TRY(Timed([&] { return get_one(i); }));
        get_us.push_back(1e6 * seconds);
        all += seconds;
      }
      const double batched = MC_TRY(Timed([&] { return objects.Get(client, 128); }));
      const double kilo = static_cast<double>(objects.count()) / 1e3;
      Record("store.remote_4k_p50_us", Quantile(get_us, 0.5), "us");
      Record("store.remote_4k_p99_us", Quantile(get_us, 0.99), "us");
      Record("store.remote_4k_kops", kilo / all, "kops");
      Record("store.remote_batch_4k_kops", kilo / batched, "kops");
      Record("store.remote_put_4k_p50_us", Quantile(put_us, 0.5), "us");
    }
    MC_TRY(client.RemoveAll());
    return {};
  }

  // Batched look-ups; client and master share this process and this machine's cores.
  Result<void> MasterLookups(RealClient& client) {
    constexpr size_t kBatch = 1000;
    constexpr size_t kValueBytes = 16;
    const Objects objects(std::span<std::byte>(user_).first(sizes_.master_keys * kValueBytes), kValueBytes, "master");
    MC_TRY(objects.Put(client, kBatch));
    std::vector<std::vector<std::string>> batches;
    for (size_t i = 0; i + kBatch <= objects.count(); i += kBatch)
      batches.emplace_back(objects.keys().begin() + static_cast<ptrdiff_t>(i),
                           objects.keys().begin() + static_cast<ptrdiff_t>(i + kBatch));
    const auto look_up_all = [&]() -> Result<void> {
      for (size_t asked = 0; asked < sizes_.lookup_keys; asked += kBatch) {
        for (auto& exists : client.BatchExist(batches[asked / kBatch % batches.size()])) {
          if (!MC_TRY(std::move(exists))) return Error(ErrorCode::OBJECT_NOT_FOUND, "a key that was put is not there");
        }
      }
      return {};
    };
    for (int run = 0; run < options_.runs; ++run) {
      Step("look-ups at the master", run);
      const double seconds = MC_TRY(Timed(look_up_all));
      Record("store.master_kops", static_cast<double>(sizes_.lookup_keys) / 1e3 / seconds, "kops");
    }
    return {};
  }

  const StoreBenchOptions& options_;
  Host host_;
  const Sizes sizes_;
  std::unique_ptr<Iperf> iperf_;
  std::unique_ptr<MasterService> master_;
  std::vector<std::byte> user_;
  std::vector<std::byte> other_;
  Figures figures_;
};

}  // namespace

Result<StoreBenchResult> RunStoreBench(const StoreBenchOptions& options) {
  return StoreBench(options, DescribeHost()).Run();
}

Result<void> ServeAsPeer(uint64_t capacity_bytes) {
  uint16_t master_port = 0;
  if (!(std::cin >> master_port)) return {};  // the other process ended
  const auto client = MC_TRY(OpenClient(master_port, capacity_bytes));
  std::cout << "ready\n" << std::flush;
  std::string ignored;
  while (std::getline(std::cin, ignored)) {
  }
  return {};
}

}  // namespace mooncake::bench
