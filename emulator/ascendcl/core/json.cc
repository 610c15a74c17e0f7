// Reads the JSON of settings and fault rules, strictly: what is unknown or doubled is refused with its place.
#include "core/json.h"

#include <cstdlib>
#include <cstring>

namespace aclemu {
namespace {

constexpr int kMaxDepth = 16;

class Parser {
 public:
  Parser(const std::string& text, std::string* why) : text_(text), why_(why) {}

  bool Document(JsonValue* out) {
    if (!Value(out, 0)) return false;
    Space();
    return at_ == text_.size() || Bad("text after the value");
  }

 private:
  bool Bad(const char* what) {
    *why_ = std::string("JSON: ") + what + " at byte " + std::to_string(at_);
    return false;
  }
  void Space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  bool Take(char c) {
    Space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool Word(const char* word) {
    if (text_.compare(at_, strlen(word), word) != 0) return false;
    at_ += strlen(word);
    return true;
  }

  bool Value(JsonValue* out, int depth) {
    if (depth > kMaxDepth) return Bad("too deep");
    Space();
    if (at_ >= text_.size()) return Bad("a value is missing");
    switch (text_[at_]) {
      case '{':
        return Object(out, depth);
      case '[':
        return Array(out, depth);
      case '"':
        out->kind = JsonValue::Kind::kString;
        return String(&out->text);
      default:
        break;
    }
    if (Word("null")) return true;
    out->kind = JsonValue::Kind::kBool;
    if (Word("false")) return true;
    out->boolean = true;
    if (Word("true")) return true;
    return Number(out);
  }

  bool Number(JsonValue* out) {
    size_t end = text_.find_first_not_of("0123456789+-.eE", at_);
    std::string digits = text_.substr(at_, end - at_);
    char* stop = nullptr;
    out->kind = JsonValue::Kind::kNumber;
    out->number = strtod(digits.c_str(), &stop);
    if (digits.empty() || *stop != '\0') return Bad("no value");
    at_ += digits.size();
    return true;
  }

  bool String(std::string* out) {
    if (!Take('"')) return Bad("'\"' expected");
    while (at_ < text_.size() && text_[at_] != '"') {
      char c = text_[at_++];
      if (static_cast<unsigned char>(c) < 0x20) return Bad("a control character in a string");
      if (c == '\\') {
        if (at_ >= text_.size() || strchr("\"\\/", text_[at_]) == nullptr)
          return Bad("an escape that is not supported");
        c = text_[at_++];
      }
      out->push_back(c);
    }
    return Take('"') || Bad("a string has no end");
  }

  bool Object(JsonValue* out, int depth) {
    out->kind = JsonValue::Kind::kObject;
    Take('{');
    if (Take('}')) return true;
    do {
      std::pair<std::string, JsonValue> member;
      Space();
      if (!String(&member.first)) return false;
      if (out->Find(member.first) != nullptr) return Bad("a key comes twice");
      if (!Take(':')) return Bad("':' expected");
      if (!Value(&member.second, depth + 1)) return false;
      out->members.push_back(std::move(member));
    } while (Take(','));
    return Take('}') || Bad("'}' expected");
  }

  bool Array(JsonValue* out, int depth) {
    out->kind = JsonValue::Kind::kArray;
    Take('[');
    if (Take(']')) return true;
    do {
      JsonValue item;
      if (!Value(&item, depth + 1)) return false;
      out->items.push_back(std::move(item));
    } while (Take(','));
    return Take(']') || Bad("']' expected");
  }

  const std::string& text_;
  std::string* why_;
  size_t at_ = 0;
};

}  // namespace

const JsonValue* JsonValue::Find(const std::string& key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

bool ParseJson(const std::string& text, JsonValue* out, std::string* why) {
  return Parser(text, why).Document(out);
}

}  // namespace aclemu
