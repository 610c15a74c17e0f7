// Metadata in Redis. hiredis writes and reads the protocol; the sockets are ours, because its own calls have no time
// limit for a whole command and raise SIGPIPE on a broken connection.
#include <hiredis.h>

#include <array>
#include <mutex>

#include "common/json_text.h"
#include "coordination/tcp_stream.h"
#include "transfer_engine/metadata/stores.h"

namespace mooncake {
namespace {

constexpr size_t kMaxIdle = 4;
constexpr size_t kMaxReply = size_t{96} << 20;

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
struct FreeReader {
  void operator()(redisReader* reader) const { redisReaderFree(reader); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;
using Words = std::vector<std::string_view>;

std::string_view TextOf(const redisReply& reply) {
  return reply.str == nullptr ? std::string_view() : std::string_view(reply.str, static_cast<size_t>(reply.len));
}

class Connection {
 public:
  static Result<Connection> Open(const RedisOptions& options, Deadline deadline) {
    Connection connection(MC_TRY(TcpStream::Connect(options.server, deadline)));
    if (!options.password.empty()) {
      Words login{"AUTH"};
      if (!options.username.empty()) login.push_back(options.username);
      login.push_back(options.password);
      MC_TRY(connection.Expect(login, deadline));
    }
    if (options.database != 0) MC_TRY(connection.Expect({"SELECT", std::to_string(options.database)}, deadline));
    return connection;
  }

  // After an error the connection is of no use any more.
  Result<Reply> Run(const Words& words, Deadline deadline) {
    std::vector<const char*> data;
    std::vector<size_t> sizes;
    for (const std::string_view word : words) {
      data.push_back(word.data());
      sizes.push_back(word.size());
    }
    char* text = nullptr;
    const int length = redisFormatCommandArgv(&text, static_cast<int>(words.size()), data.data(), sizes.data());
    if (length < 0) return Error(ErrorCode::METADATA_ERROR, "command too long");
    const std::unique_ptr<char, decltype(&redisFreeCommand)> command(text, &redisFreeCommand);
    MC_TRY(stream_.Send({text, static_cast<size_t>(length)}, deadline));
    return Receive(deadline);
  }

 private:
  explicit Connection(TcpStream stream) : stream_(std::move(stream)), reader_(redisReaderCreate()) {}

  Result<Reply> Receive(Deadline deadline) {
    std::array<char, 16384> buffer;
    for (size_t total = 0; total <= kMaxReply;) {
      const size_t got = MC_TRY(stream_.Receive(buffer, deadline));
      if (got == 0) return Error(ErrorCode::METADATA_ERROR, "connection closed by the server");
      // The reader would allocate as many elements as a made-up array claims to have; no command here gets one.
      if (total == 0 && buffer[0] == '*') return Error(ErrorCode::METADATA_ERROR, "an array as reply");
      total += got;
      void* reply = nullptr;
      if (redisReaderFeed(reader_.get(), buffer.data(), got) != REDIS_OK ||
          redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) {
        return Error(ErrorCode::METADATA_ERROR, "reply is not of Redis: {}", QuoteForMessage(reader_->errstr));
      }
      if (reply != nullptr) return Reply(static_cast<redisReply*>(reply));
    }
    return Error(ErrorCode::METADATA_ERROR, "reply longer than {} bytes", kMaxReply);
  }

  Result<void> Expect(const Words& words, Deadline deadline) {
    const Reply reply = MC_TRY(Run(words, deadline));
    if (reply->type == REDIS_REPLY_STATUS) return {};
    return Error(ErrorCode::METADATA_ERROR, "{}: {}", words.front(), QuoteForMessage(TextOf(*reply), 256));
  }

  TcpStream stream_;
  std::unique_ptr<redisReader, FreeReader> reader_;
};

class RedisMetadata final : public MetadataStore {
 public:
  explicit RedisMetadata(RedisOptions options) : options_(std::move(options)) {}

  Result<std::optional<std::string>> Get(const std::string& key, Deadline deadline) override {
    const Reply reply = MC_TRY(Run({"GET", key}, deadline));
    if (reply->type == REDIS_REPLY_NIL) return std::nullopt;
    if (reply->type != REDIS_REPLY_STRING) return Unexpected("GET", key, *reply);
    return std::string(TextOf(*reply));
  }

  Result<void> Put(const std::string& key, const std::string& value, Deadline deadline) override {
    const Reply reply = MC_TRY(Run({"SET", key, value}, deadline));
    if (reply->type != REDIS_REPLY_STATUS) return Unexpected("SET", key, *reply);
    return {};
  }

  Result<void> Remove(const std::string& key, Deadline deadline) override {
    const Reply reply = MC_TRY(Run({"DEL", key}, deadline));
    if (reply->type != REDIS_REPLY_INTEGER) return Unexpected("DEL", key, *reply);
    return {};
  }

 private:
  std::string Name() const { return fmt::format("redis://{}", options_.server.ToString()); }

  std::unexpected<Status> Unexpected(const char* command, const std::string& key, const redisReply& reply) const {
    return Error(ErrorCode::METADATA_ERROR, "{}: {} {}: {}", Name(), command, QuoteForMessage(key),
                 QuoteForMessage(TextOf(reply), 256));
  }

  // A kept connection may have died meanwhile. Every command may be repeated: it does the same again.
  Result<Reply> Run(const Words& words, Deadline deadline) {
    while (auto kept = TakeIdle()) {
      auto reply = kept->Run(words, deadline);
      if (!reply) continue;
      Keep(std::move(*kept));
      return reply;
    }
    auto opened = Connection::Open(options_, deadline);
    if (!opened) return Annotate(opened.error(), Name());
    auto reply = opened->Run(words, deadline);
    if (!reply) return Annotate(reply.error(), Name());
    Keep(std::move(*opened));
    return reply;
  }

  std::optional<Connection> TakeIdle() {
    std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::nullopt;
    std::optional<Connection> taken(std::move(idle_.back()));
    idle_.pop_back();
    return taken;
  }

  void Keep(Connection connection) {
    std::lock_guard lock(mutex_);
    if (idle_.size() < kMaxIdle) idle_.push_back(std::move(connection));
  }

  const RedisOptions options_;
  std::mutex mutex_;
  std::vector<Connection> idle_;
};

}  // namespace

std::unique_ptr<MetadataStore> OpenRedisMetadata(RedisOptions options) {
  return std::make_unique<RedisMetadata>(std::move(options));
}

}  // namespace mooncake
