// Latency and throughput of the RPC layer between two processes over loopback; prints one line per figure.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "rpc/rpc_client.h"
#include "rpc/rpc_server.h"

namespace mooncake::rpc {
namespace {

constexpr uint16_t kEcho = 1, kDownload = 2, kUpload = 3;

Deadline Soon() {
  return Deadline::After(std::chrono::seconds(60));
}
double Seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

void Die(const Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// The child: serves until its parent ends.
[[noreturn]] void Serve(int port_pipe, size_t payload_bytes) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  IoPool pool(1);
  auto server = RpcServer::Listen(pool, {.listen = {"127.0.0.1", 0}, .self = {.role = "bench"}});
  if (!server) Die(server.error());
  auto memory = std::make_shared<std::vector<std::byte>>(payload_bytes, std::byte{1});
  (*server)->Handle(kEcho, [](ServerCall call) {
    std::string body(call.body());
    std::move(call).Reply(std::move(body));
  });
  (*server)->Handle(kDownload, [memory](ServerCall call) { std::move(call).Reply("", {ConstSpan(*memory)}, memory); });
  (*server)->Handle(kUpload, [memory](ServerCall call) {
    std::vector<MutableSpan> spans{MutableSpan(*memory).first(call.payload_bytes())};
    std::move(call).ReceivePayload(std::move(spans), memory,
                                   [](ServerCall done, Result<void>) { std::move(done).Reply(""); });
  });
  (*server)->Start();
  const uint16_t port = (*server)->port();
  if (write(port_pipe, &port, sizeof(port)) != sizeof(port)) std::exit(1);
  for (;;) pause();
}

void MeasureLatency(RpcClient& client, const std::string& body, int calls) {
  std::vector<double> micros;
  for (int i = 0; i < calls; ++i) {
    const TimePoint start = SteadyClock::Instance().Now();
    if (const auto reply = client.Call(kEcho, body, Soon()); !reply) Die(reply.error());
    micros.push_back(1e6 * Seconds(SteadyClock::Instance().Now() - start));
  }
  std::sort(micros.begin(), micros.end());
  std::printf("echo %zu B blocking: p50 %.1f us, p99 %.1f us\n", body.size(), micros[micros.size() / 2],
              micros[micros.size() * 99 / 100]);
}

// Keeps `depth` calls in flight until `total` are done; each completion starts the next.
class Pipeline {
 public:
  Pipeline(RpcClient& client, int depth, int total) : client_(client), total_(total) {
    for (int i = 0; i < depth; ++i) Next();
  }
  double Wait() {
    std::unique_lock lock(mutex_);
    all_done_.wait(lock, [this] { return done_ == total_; });
    return Seconds(SteadyClock::Instance().Now() - start_);
  }

 private:
  void Next() {
    if (started_.fetch_add(1) >= total_) return;
    client_.CallAsync(kEcho, body_, {}, Soon(), [this](Result<std::string> reply) {
      if (!reply) Die(reply.error());
      Next();
      if (finished_.fetch_add(1) + 1 < total_) return;
      std::lock_guard lock(mutex_);
      done_ = total_;
      all_done_.notify_one();
    });
  }

  RpcClient& client_;
  const int total_;
  const std::string body_ = std::string(64, 'x');
  const TimePoint start_ = SteadyClock::Instance().Now();
  std::atomic<int> started_{0};
  std::atomic<int> finished_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
  int done_ = 0;
};

void MeasurePayload(RpcClient& client, uint16_t method, size_t bytes, int calls) {
  std::vector<std::byte> memory(bytes, std::byte{2});
  const TimePoint start = SteadyClock::Instance().Now();
  for (int i = 0; i < calls; ++i) {
    CallArguments arguments;
    if (method == kUpload) arguments.payload = {memory};
    arguments.sink = [&](std::string_view, uint64_t) -> Result<std::vector<MutableSpan>> {
      return std::vector<MutableSpan>{memory};
    };
    if (const auto reply = client.Call(method, "", Soon(), std::move(arguments)); !reply) Die(reply.error());
  }
  const double seconds = Seconds(SteadyClock::Instance().Now() - start);
  std::printf("%s %zu B one at a time: %.2f GB/s\n", method == kUpload ? "upload" : "download", bytes,
              1e-9 * static_cast<double>(bytes) * calls / seconds);
}

int Main(size_t payload_bytes) {
  int ports[2];
  if (pipe(ports) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) Serve(ports[1], payload_bytes);
  uint16_t port = 0;
  if (read(ports[0], &port, sizeof(port)) != sizeof(port)) return 1;
  IoPool pool(1);
  const auto client = RpcClient::Create(pool, {.peer = {"127.0.0.1", port}, .self = {.role = "tool"}});
  MeasureLatency(*client, std::string(64, 'x'), 2000);
  MeasureLatency(*client, std::string(64, 'x'), 30000);
  MeasureLatency(*client, std::string(4096, 'x'), 30000);
  for (const int depth : {1, 64, 512}) {
    const int total = depth == 1 ? 50'000 : 1'000'000;
    const double seconds = Pipeline(*client, depth, total).Wait();
    std::printf("echo 64 B, %d in flight: %.0f k calls/s, %.1f us each\n", depth, 1e-3 * total / seconds,
                1e6 * seconds * depth / total);
  }
  for (const uint16_t method : {kDownload, kUpload}) MeasurePayload(*client, method, payload_bytes, 3000);
  client->Close();
  kill(child, SIGTERM);
  waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace mooncake::rpc

int main() {
  return mooncake::rpc::Main(1 << 20);
}
