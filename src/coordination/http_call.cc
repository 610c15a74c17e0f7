// HTTP/1.1 as far as a client needs it that sends one request and then closes.
#include "coordination/http_call.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "common/json_text.h"
#include "coordination/tcp_stream.h"

namespace mooncake {
namespace {

constexpr size_t kMaxHead = size_t{64} << 10;
constexpr size_t kMaxBody = size_t{96} << 20;
constexpr size_t kMaxChunkLine = 1024;

std::unexpected<Status> Garbled(std::string_view what, std::string_view text) {
  return Error(ErrorCode::METADATA_ERROR, "answer is no HTTP: {} {}", what, QuoteForMessage(text));
}

bool SameWord(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::optional<size_t> Number(std::string_view text, int base) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The answer's bytes, in pieces.
class Input {
 public:
  Input(TcpStream& stream, Deadline deadline) : stream_(stream), deadline_(deadline) {}

  // Without its end of line. `limit`: bytes a line may have.
  Result<std::string> Line(size_t limit) {
    std::string line;
    for (;;) {
      const size_t end = left_.find('\n');
      line += left_.substr(0, end);
      if (line.size() > limit) return Garbled("line longer than the limit:", line);
      if (end != std::string_view::npos) {
        left_.remove_prefix(end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return line;
      }
      if (!MC_TRY(More())) return Garbled("it ends within", line);
    }
  }
  // Appends exactly `size` bytes.
  Result<void> Take(size_t size, std::string& out) {
    if (size > kMaxBody || out.size() > kMaxBody - size) return TooLong();
    for (;;) {
      const std::string_view part = left_.substr(0, size);
      out += part;
      left_.remove_prefix(part.size());
      size -= part.size();
      if (size == 0) return {};
      if (!MC_TRY(More())) return Error(ErrorCode::METADATA_ERROR, "answer ends {} bytes early", size);
    }
  }
  Result<void> TakeAll(std::string& out) {
    do {
      if (left_.size() > kMaxBody - out.size()) return TooLong();
      out += left_;
      left_ = {};
    } while (MC_TRY(More()));
    return {};
  }

 private:
  static std::unexpected<Status> TooLong() {
    return Error(ErrorCode::METADATA_ERROR, "answer longer than {} bytes", kMaxBody);
  }
  // False: the peer has closed. Called when nothing is left.
  Result<bool> More() {
    const size_t got = MC_TRY(stream_.Receive(buffer_, deadline_));
    left_ = std::string_view(buffer_.data(), got);
    return got > 0;
  }

  TcpStream& stream_;
  const Deadline deadline_;
  std::array<char, 16384> buffer_;
  std::string_view left_;  // of buffer_
};

struct Head {
  int code = 0;
  std::optional<size_t> length;
  bool chunked = false;
};

Result<Head> ReadHead(Input& input) {
  Head head;
  size_t bytes = 0;
  const std::string status = MC_TRY(input.Line(kMaxHead));
  const std::string_view text = status;
  const auto code = Number(text.substr(std::min<size_t>(9, text.size())).substr(0, 3), 10);
  if (!text.starts_with("HTTP/1.") || text.size() < 12 || text[8] != ' ' || !code || *code < 100) {
    return Garbled("first line", text);
  }
  head.code = static_cast<int>(*code);
  for (;;) {
    const std::string line = MC_TRY(input.Line(kMaxHead));
    if (line.empty()) return head;
    bytes += line.size();
    if (bytes > kMaxHead) return Garbled("headers longer than the limit:", line);
    const size_t colon = line.find(':');
    if (colon == std::string::npos) return Garbled("header", line);
    const std::string_view name = std::string_view(line).substr(0, colon);
    const std::string_view value = Trim(std::string_view(line).substr(colon + 1));
    if (SameWord(name, "Content-Length")) {
      head.length = Number(value, 10);
      if (!head.length) return Garbled("header", line);
    } else if (SameWord(name, "Transfer-Encoding")) {
      head.chunked = SameWord(value, "chunked");
      if (!head.chunked && !SameWord(value, "identity")) return Garbled("header", line);
    }
  }
}

Result<void> ReadChunks(Input& input, std::string& body) {
  for (;;) {
    const std::string line = MC_TRY(input.Line(kMaxChunkLine));
    const auto size = Number(Trim(std::string_view(line).substr(0, line.find(';'))), 16);
    if (!size) return Garbled("size of a chunk", line);
    if (*size == 0) return {};  // trailers are of no interest, the connection ends here
    MC_TRY(input.Take(*size, body));
    if (!MC_TRY(input.Line(kMaxChunkLine)).empty()) return Garbled("end of a chunk in", body.substr(0, 64));
  }
}

Result<HttpAnswer> Receive(TcpStream& stream, Deadline deadline) {
  Input input(stream, deadline);
  Head head = MC_TRY(ReadHead(input));
  constexpr int kMaxInterim = 8;
  for (int i = 0; head.code < 200; ++i) {
    if (i == kMaxInterim) return Garbled("only interim answers, last", std::to_string(head.code));
    head = MC_TRY(ReadHead(input));
  }
  HttpAnswer answer{.code = head.code, .body = {}};
  if (head.code == 204 || head.code == 304) return answer;
  if (head.chunked) {
    MC_TRY(ReadChunks(input, answer.body));
  } else if (head.length) {
    MC_TRY(input.Take(*head.length, answer.body));
  } else {
    MC_TRY(input.TakeAll(answer.body));
  }
  return answer;
}

Result<HttpAnswer> CallUnnamed(const HttpCall& call, Deadline deadline) {
  TcpStream stream = MC_TRY(TcpStream::Connect(call.server, deadline));
  std::string head = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAccept: */*\r\n", call.method,
                                 call.target, call.server.ToString());
  const bool has_body = !call.body.empty() || call.method == "PUT" || call.method == "POST";
  if (has_body) head += fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n", call.content_type, call.body.size());
  MC_TRY(stream.Send(head + "\r\n", deadline));
  const auto sent = stream.Send(call.body, deadline);
  // A server that refuses a long request answers and closes before it has read all of it.
  auto answer = Receive(stream, deadline);
  if (!sent && !answer) return std::unexpected(sent.error());
  return answer;
}

std::string Name(const HttpCall& call) {
  return fmt::format("{} http://{}{}", call.method, call.server.ToString(), call.target);
}

}  // namespace

Result<HttpAnswer> Call(const HttpCall& call, Deadline deadline) {
  auto answer = CallUnnamed(call, deadline);
  if (!answer) return Annotate(answer.error(), Name(call));
  return answer;
}

std::unexpected<Status> HttpError(const HttpCall& call, const HttpAnswer& answer) {
  constexpr size_t kShown = 256;
  return Error(ErrorCode::METADATA_ERROR, "{}: code {}, {}", Name(call), answer.code,
               QuoteForMessage(answer.body, kShown));
}

std::string UrlEscape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~").contains(c);
    escaped += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return escaped;
}

}  // namespace mooncake
