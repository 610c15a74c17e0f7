// Reads the small JSON files of ACLEMU_CONFIG. Strict: no comments, no doubled keys, nothing after the value.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace aclemu {

struct JsonValue {
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  double number = 0;
  std::string text;  // of a string
  std::vector<JsonValue> items;
  std::vector<std::pair<std::string, JsonValue>> members;

  const JsonValue* Find(const std::string& key) const;
};

// False, with the reason and the place, when the text is not one JSON value.
bool ParseJson(const std::string& text, JsonValue* out, std::string* why);

}  // namespace aclemu
