// JSON text to a tree whose values and keys know where they stand, so that a configuration error can name its place.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace mooncake {

// Both count from 1. A column is one code point; a tab is one column; lines end at '\n'.
struct TextPosition {
  uint32_t line = 1;
  uint32_t column = 1;
  friend bool operator==(const TextPosition&, const TextPosition&) = default;
};

struct JsonMember;

// One value. Only the fields of its kind are meaningful. A plain value type: copy, move and keep it as you like.
struct JsonValue {
  // kUnsigned: integers from 0 to UINT64_MAX. kSigned: "-0" and below. kDouble: fractions, exponents, larger integers.
  enum class Kind : uint8_t { kNull, kBool, kSigned, kUnsigned, kDouble, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool bool_value = false;
  int64_t signed_value = 0;
  uint64_t unsigned_value = 0;
  double double_value = 0;
  std::string text;                 // kString: the decoded string; numbers: as written
  std::vector<JsonValue> items;     // kArray
  std::vector<JsonMember> members;  // kObject, in the order of the text, keys unique
  TextPosition position;            // of its first character
  std::string path;                 // "$.tiers[1].capacity"; long keys are shortened

  const JsonMember* Find(std::string_view key) const;  // nullptr when absent
};

struct JsonMember {
  std::string key;
  TextPosition key_position;  // of the opening quote
  JsonValue value;
};

// Bound the memory a text can make us use. A text beyond one of them is an error that names the limit.
struct JsonLimits {
  size_t max_bytes = size_t{1} << 20;
  size_t max_depth = 64;  // nested arrays and objects
  size_t max_values = size_t{1} << 14;
};

// Strict JSON (UTF-8, BOM allowed) plus // and /* */ comments. A repeated key, text after the root value, a NUL byte
// and anything beyond the limits are errors. Every error is INVALID_PARAMS and reads
// "SOURCE:LINE:COLUMN: PATH: what is wrong; what was expected". Safe on any bytes. Any thread.
Result<JsonValue> ParseJson(std::string_view text, std::string_view source, const JsonLimits& limits = {});

// "SOURCE:LINE:COLUMN: PATH", the form in which every message names a place.
std::string JsonPlace(std::string_view source, TextPosition position, std::string_view path);

// INVALID_PARAMS at the place of a value, for readers of the tree.
template <typename... Args>
std::unexpected<Status> JsonError(std::string_view source, const JsonValue& value, fmt::format_string<Args...> format,
                                  Args&&... args) {
  return Error(ErrorCode::INVALID_PARAMS, "{}: {}", JsonPlace(source, value.position, value.path),
               fmt::format(format, std::forward<Args>(args)...));
}
// The same at the place of a key.
template <typename... Args>
std::unexpected<Status> JsonError(std::string_view source, const JsonMember& member, fmt::format_string<Args...> format,
                                  Args&&... args) {
  return Error(ErrorCode::INVALID_PARAMS, "{}: {}", JsonPlace(source, member.key_position, member.value.path),
               fmt::format(format, std::forward<Args>(args)...));
}

// A value for a message: scalars as written, strings quoted and shortened, "an array of 3", "an object".
std::string DescribeJson(const JsonValue& value);

// Printable, in double quotes, at most `max_bytes` of the text: control and non-UTF-8 bytes are escaped.
std::string QuoteForMessage(std::string_view text, size_t max_bytes = 64);

// The allowed name a person most likely meant (case ignored, few edits), nullopt when none is near.
std::optional<std::string_view> NearestName(std::string_view name, std::span<const std::string_view> allowed);

// " (did you mean \"capacity\"?)" or "".
std::string DidYouMean(std::string_view name, std::span<const std::string_view> allowed);

}  // namespace mooncake
