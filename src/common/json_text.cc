// Positions are not part of nlohmann's SAX events. Events arrive in text order, each right after its token was scanned,
// so a cursor that follows them over the same text finds where every token starts.
#include "common/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace mooncake {
namespace {

constexpr size_t kMaxKeyInPath = 32;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Length of the UTF-8 sequence at the front of `text`, 0 when it is not one.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return 1;
  const size_t length = byte(0) >= 0xC2 && byte(0) < 0xE0   ? 2
                        : byte(0) >= 0xE0 && byte(0) < 0xF0 ? 3
                        : byte(0) >= 0xF0 && byte(0) < 0xF5 ? 4
                                                            : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (byte(0) == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
  if (byte(0) == 0xED && byte(1) > 0x9F) return 0;  // surrogate
  if (byte(0) == 0xF0 && byte(1) < 0x90) return 0;  // overlong
  if (byte(0) == 0xF4 && byte(1) > 0x8F) return 0;  // above U+10FFFF
  return length;
}

// Walks over a text and keeps line and column.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {
    if (text_.starts_with(kByteOrderMark)) offset_ = kByteOrderMark.size();
  }

  size_t offset() const { return offset_; }
  TextPosition position() const { return position_; }
  bool at_end() const { return offset_ == text_.size(); }
  char front() const { return text_[offset_]; }
  std::string_view rest() const { return text_.substr(offset_); }

  void AdvanceTo(size_t offset) {
    for (offset = std::min(offset, text_.size()); offset_ < offset; ++offset_) {
      const auto c = static_cast<unsigned char>(text_[offset_]);
      if (c == '\n') {
        ++position_.line;
        position_.column = 1;
      } else if ((c & 0xC0) != 0x80) {
        ++position_.column;
      }
    }
  }

  // To the next character that is not a space, part of a complete comment, or one of `separators`.
  void SkipTo(std::string_view separators) {
    while (!at_end()) {
      if (const size_t comment = CommentLength(); comment != 0) {
        AdvanceTo(offset_ + comment);
      } else if (std::string_view(" \t\r\n").contains(front()) || separators.contains(front())) {
        AdvanceTo(offset_ + 1);
      } else {
        return;
      }
    }
  }

  // Over the token at the cursor, which the scanner has accepted. Returns its text.
  std::string_view TakeToken() {
    size_t length = 1;
    if (front() == '"') {
      while (rest()[length] != '"') length += rest()[length] == '\\' ? 2 : 1;
      ++length;
    } else if (!std::string_view("{}[]").contains(front())) {
      length = std::min(rest().find_first_not_of("+-.0123456789abcdefghijklmnopqrstuvwxyzE"), rest().size());
    }
    const std::string_view token = rest().substr(0, length);
    AdvanceTo(offset_ + length);
    return token;
  }

 private:
  // 0 when no comment starts here or it never ends. A line comment ends at '\r' too: the scanner sees it so.
  size_t CommentLength() const {
    if (rest().starts_with("//")) return std::min(rest().find_first_of("\r\n"), rest().size());
    if (!rest().starts_with("/*")) return 0;
    const size_t end = rest().find("*/", 2);
    return end == std::string_view::npos ? 0 : end + 2;
  }

  std::string_view text_;
  size_t offset_ = 0;
  TextPosition position_;
};

std::string KeyInPath(std::string_view key) {
  const bool plain = !key.empty() && key.size() <= kMaxKeyInPath && std::ranges::all_of(key, [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
  return plain ? fmt::format(".{}", key) : fmt::format("[{}]", QuoteForMessage(key, kMaxKeyInPath));
}

// What the grammar wanted, by the context word nlohmann puts into its message.
std::string_view ExpectedIn(std::string_view context) {
  if (context == "object key") return "expected a key in double quotes or '}'";
  if (context == "object separator") return "expected ':'";
  if (context == "object") return "expected ',' or '}'";
  if (context == "array") return "expected ',' or ']'";
  return "expected a value: a string, number, true, false, null, '{' or '['";
}

// Turns SAX events into the tree. Every event returns false to stop, with status_ saying why.
class TreeBuilder {
 public:
  TreeBuilder(std::string_view text, std::string_view source, const JsonLimits& limits)
      : text_(text), source_(source), limits_(limits), cursor_(text) {}

  Result<JsonValue> Finish(bool parsed) {
    if (!parsed) return std::unexpected(std::move(status_));
    return std::move(root_);
  }

  bool null() {
    return Scalar(JsonValue::Kind::kNull, [](JsonValue&) {});
  }
  bool boolean(bool value) {
    return Scalar(JsonValue::Kind::kBool, [&](JsonValue& v) { v.bool_value = value; });
  }
  bool number_integer(int64_t value) {
    return Scalar(JsonValue::Kind::kSigned, [&](JsonValue& v) { v.signed_value = value; });
  }
  bool number_unsigned(uint64_t value) {
    return Scalar(JsonValue::Kind::kUnsigned, [&](JsonValue& v) { v.unsigned_value = value; });
  }
  bool number_float(double value, const std::string&) {
    return Scalar(JsonValue::Kind::kDouble, [&](JsonValue& v) { v.double_value = value; });
  }
  bool string(std::string& value) {
    return Scalar(JsonValue::Kind::kString, [&](JsonValue& v) { v.text = std::move(value); });
  }
  bool binary(nlohmann::json::binary_t&) { return Fail(cursor_.position(), "binary value"); }

  bool start_object(size_t) { return Open(JsonValue::Kind::kObject); }
  bool start_array(size_t) { return Open(JsonValue::Kind::kArray); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool key(std::string& key) {
    cursor_.SkipTo(",");
    const TextPosition position = cursor_.position();
    cursor_.TakeToken();
    Frame& frame = open_.back();
    frame.key_path = KeyInPath(key);
    if (const auto [first, fresh] = frame.keys.emplace(key, position); !fresh) {
      return Fail(position, fmt::format("key {} appears twice in one object, first at line {} column {}",
                                        QuoteForMessage(key), first->second.line, first->second.column));
    }
    frame.value.members.push_back({std::move(key), position, {}});
    return true;
  }

  bool parse_error(size_t bytes_read, const std::string&, const nlohmann::json::exception& error) {
    if (error.id == 406) {
      cursor_.SkipTo(",:");
      const TextPosition start = cursor_.position();
      return Fail(start, fmt::format("number {} is out of range", QuoteForMessage(cursor_.TakeToken())));
    }
    // "[...] parse error at line 1, column 2: syntax error while parsing CONTEXT - REASON; expected WHAT"
    const std::string_view what = error.what();
    const std::string_view context = Between(what, "while parsing ", " - ");
    const std::string_view reason = Between(what, " - ", "; last read: '");
    const bool after_root = context == "value" && what.ends_with("; expected end of input");
    GoToError(bytes_read, reason);
    const std::string near =
        cursor_.at_end() ? "the end of the text" : QuoteForMessage(cursor_.rest().substr(0, 24), 16);
    const TextPosition position = cursor_.position();
    if (after_root) return Fail(position, fmt::format("text after the end of the value: {}", near));
    if (reason.starts_with("unexpected ") || reason == "invalid literal") {
      return Fail(position, fmt::format("syntax error at {}; {}", near, ExpectedIn(context)));
    }
    return Fail(position, fmt::format("syntax error at {}: {}; {}", near, reason, ExpectedIn(context)));
  }

 private:
  struct Frame {
    JsonValue value;
    std::string key_path;  // of the member being read, "" in arrays
    std::unordered_map<std::string, TextPosition> keys;
  };

  static std::string_view Between(std::string_view text, std::string_view before, std::string_view after) {
    const size_t start = std::min(text.find(before), text.size());
    text.remove_prefix(std::min(start + before.size(), text.size()));
    return text.substr(0, text.find(after));
  }

  // Puts the cursor where the wrong text starts. The scanner has read up to `bytes_read`; since the last event it has
  // passed separators only, so a wrong word starts behind them, and a wrong separator is the last byte read.
  void GoToError(size_t bytes_read, std::string_view reason) {
    const size_t last = std::min(bytes_read == 0 ? 0 : bytes_read - 1, text_.size());
    const bool word = reason.starts_with("unexpected ") || reason.starts_with("invalid literal") ||
                      reason.starts_with("invalid comment") || reason.contains("missing closing quote");
    const bool separator =
        reason.starts_with("unexpected ") && last < text_.size() && std::string_view("{}[],:").contains(text_[last]);
    if (word && !separator) {
      cursor_.SkipTo(",:");
    } else {
      cursor_.AdvanceTo(last);
    }
  }

  std::string CurrentPath() const {
    if (open_.empty()) return "$";
    const Frame& frame = open_.back();
    if (frame.value.kind == JsonValue::Kind::kObject) return frame.value.path + frame.key_path;
    return fmt::format("{}[{}]", frame.value.path, frame.value.items.size());
  }

  bool Fail(TextPosition position, std::string_view message) {
    status_ =
        Status(ErrorCode::INVALID_PARAMS, fmt::format("{}: {}", JsonPlace(source_, position, CurrentPath()), message));
    return false;
  }

  // Starts a value at the cursor; false when there are too many.
  bool Begin(JsonValue::Kind kind, JsonValue& value) {
    cursor_.SkipTo(",:");
    value.kind = kind;
    value.position = cursor_.position();
    value.path = CurrentPath();
    if (++values_ <= limits_.max_values) return true;
    return Fail(value.position, fmt::format("more than {} values", limits_.max_values));
  }

  template <typename Fill>
  bool Scalar(JsonValue::Kind kind, Fill fill) {
    JsonValue value;
    if (!Begin(kind, value)) return false;
    value.text = cursor_.TakeToken();
    fill(value);
    Attach(std::move(value));
    return true;
  }

  bool Open(JsonValue::Kind kind) {
    JsonValue value;
    if (!Begin(kind, value)) return false;
    if (open_.size() == limits_.max_depth) {
      return Fail(value.position, fmt::format("nested deeper than {} levels", limits_.max_depth));
    }
    cursor_.TakeToken();
    open_.push_back({std::move(value), "", {}});
    return true;
  }

  bool Close() {
    cursor_.SkipTo(",");
    cursor_.TakeToken();
    JsonValue value = std::move(open_.back().value);
    open_.pop_back();
    Attach(std::move(value));
    return true;
  }

  void Attach(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (JsonValue& parent = open_.back().value; parent.kind == JsonValue::Kind::kObject) {
      parent.members.back().value = std::move(value);
      open_.back().key_path.clear();
    } else {
      parent.items.push_back(std::move(value));
    }
  }

  const std::string_view text_;
  const std::string_view source_;
  const JsonLimits limits_;
  Cursor cursor_;
  std::vector<Frame> open_;  // from the root inwards
  size_t values_ = 0;
  JsonValue root_;
  Status status_;
};

char Lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Edits (insert, remove, replace, swap of neighbours) that turn one word into the other, letter case ignored.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) current[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(previous);
    previous.swap(current);
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = Lower(a[i - 1]) == Lower(b[j - 1]);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && Lower(a[i - 1]) == Lower(b[j - 2]) && Lower(a[i - 2]) == Lower(b[j - 1]);
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
  }
  return current[b.size()];
}

}  // namespace

const JsonMember* JsonValue::Find(std::string_view key) const {
  const auto found = std::ranges::find(members, key, &JsonMember::key);
  return found == members.end() ? nullptr : &*found;
}

Result<JsonValue> ParseJson(std::string_view text, std::string_view source, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return Error(ErrorCode::INVALID_PARAMS, "{}: {} bytes of JSON, the limit is {}", JsonPlace(source, {}, "$"),
                 text.size(), limits.max_bytes);
  }
  // The scanner takes a NUL for the end of its input and would silently drop the rest.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    Cursor cursor(text);
    cursor.AdvanceTo(nul);
    return Error(ErrorCode::INVALID_PARAMS, "{}: NUL byte; expected UTF-8 text",
                 JsonPlace(source, cursor.position(), "$"));
  }
  TreeBuilder builder(text, source, limits);
  return builder.Finish(nlohmann::json::sax_parse(text.begin(), text.end(), &builder,
                                                  nlohmann::json::input_format_t::json, /*strict=*/true,
                                                  /*ignore_comments=*/true));
}

std::string JsonPlace(std::string_view source, TextPosition position, std::string_view path) {
  return fmt::format("{}:{}:{}: {}", source, position.line, position.column, path);
}

std::string DescribeJson(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBool:
      return value.bool_value ? "true" : "false";
    case JsonValue::Kind::kSigned:
    case JsonValue::Kind::kUnsigned:
    case JsonValue::Kind::kDouble:
      return value.text.size() <= 64 ? value.text : value.text.substr(0, 64) + "...";
    case JsonValue::Kind::kString:
      return QuoteForMessage(value.text);
    case JsonValue::Kind::kArray:
      return fmt::format("an array of {}", value.items.size());
    case JsonValue::Kind::kObject:
      return "an object";
  }
  return "";
}

std::string QuoteForMessage(std::string_view text, size_t max_bytes) {
  std::string quoted = "\"";
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text.substr(i));
    if (i + std::max<size_t>(length, 1) > max_bytes) return quoted + "...\"";
    const char c = text[i];
    if (length > 1 || (length == 1 && c >= ' ' && c != 0x7F && c != '"' && c != '\\')) {
      quoted += text.substr(i, length);
    } else if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    i += std::max<size_t>(length, 1);
  }
  return quoted + "\"";
}

std::optional<std::string_view> NearestName(std::string_view name, std::span<const std::string_view> allowed) {
  if (name.size() > 64) return std::nullopt;
  std::optional<std::string_view> nearest;
  size_t nearest_distance = std::max<size_t>(1, name.size() / 3) + 1;
  for (const std::string_view candidate : allowed) {
    const size_t distance = EditDistance(name, candidate);
    if (distance >= nearest_distance || distance >= candidate.size()) continue;
    nearest = candidate;
    nearest_distance = distance;
  }
  return nearest;
}

std::string DidYouMean(std::string_view name, std::span<const std::string_view> allowed) {
  const auto nearest = NearestName(name, allowed);
  return nearest ? fmt::format(" (did you mean \"{}\"?)", *nearest) : "";
}

}  // namespace mooncake
