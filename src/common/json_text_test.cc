// Positions, paths, limits and messages of the JSON reader, and its safety on any bytes.
#include "common/json_text.h"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <random>

namespace mooncake {
namespace {

using Kind = JsonValue::Kind;

std::string ErrorOf(std::string_view text, const JsonLimits& limits = {}) {
  const auto result = ParseJson(text, "f.json", limits);
  if (result) return "(accepted)";
  EXPECT_EQ(result.error().code(), ErrorCode::INVALID_PARAMS);
  return result.error().message();
}

TEST(JsonText, EveryValueAndKeyKnowsLineColumnAndPath) {
  const auto root = ParseJson(
      "// first\n"
      "{\n"
      "  \"tiers\": [ /* a\n"
      "  b */ {\"capacity\": 12, \"on\" : true},\n"
      "\t-3, 1.5e3, null, \"x\\\"y\"],\r\n"
      "  \"键\": {}, \"after\": false\n"
      "} // end",
      "f.json");
  ASSERT_TRUE(root) << root.error().message();
  EXPECT_EQ(root->position, (TextPosition{2, 1}));
  EXPECT_EQ(root->path, "$");
  const JsonMember* tiers = root->Find("tiers");
  ASSERT_NE(tiers, nullptr);
  EXPECT_EQ(tiers->key_position, (TextPosition{3, 3}));
  EXPECT_EQ(tiers->value.position, (TextPosition{3, 12}));
  ASSERT_EQ(tiers->value.items.size(), 5u);
  const JsonValue& first = tiers->value.items[0];
  EXPECT_EQ(first.position, (TextPosition{4, 8}));
  EXPECT_EQ(first.path, "$.tiers[0]");
  EXPECT_EQ(first.Find("capacity")->value.position, (TextPosition{4, 21}));
  EXPECT_EQ(first.Find("capacity")->value.path, "$.tiers[0].capacity");
  EXPECT_EQ(first.Find("capacity")->value.unsigned_value, 12u);
  EXPECT_EQ(first.Find("on")->key_position, (TextPosition{4, 25}));
  EXPECT_EQ(first.Find("on")->value.position, (TextPosition{4, 32}));
  EXPECT_TRUE(first.Find("on")->value.bool_value);
  EXPECT_EQ(first.Find("off"), nullptr);
  const auto& items = tiers->value.items;
  EXPECT_EQ(items[1].position, (TextPosition{5, 2}));
  EXPECT_EQ(items[1].signed_value, -3);
  EXPECT_EQ(items[2].position, (TextPosition{5, 6}));
  EXPECT_EQ(items[2].double_value, 1500.0);
  EXPECT_EQ(items[2].text, "1.5e3");
  EXPECT_EQ(items[3].kind, Kind::kNull);
  EXPECT_EQ(items[4].text, "x\"y");
  EXPECT_EQ(items[4].position, (TextPosition{5, 19}));
  const JsonMember* key = root->Find("键");
  ASSERT_NE(key, nullptr);
  EXPECT_EQ(key->key_position, (TextPosition{6, 3}));
  EXPECT_EQ(key->value.position, (TextPosition{6, 8})) << "columns count characters, not bytes";
  EXPECT_EQ(key->value.path, "$[\"键\"]");
  EXPECT_EQ(root->Find("after")->value.position, (TextPosition{6, 21}));
}

TEST(JsonText, ReadsNumbersByRange) {
  const auto root = ParseJson("[0, 18446744073709551615, 18446744073709551616, -9223372036854775808, -0, 1e308]", "f");
  ASSERT_TRUE(root);
  EXPECT_EQ(root->items[0].kind, Kind::kUnsigned);
  EXPECT_EQ(root->items[1].unsigned_value, UINT64_MAX);
  EXPECT_EQ(root->items[2].kind, Kind::kDouble);
  EXPECT_EQ(root->items[2].text, "18446744073709551616");
  EXPECT_EQ(root->items[3].signed_value, INT64_MIN);
  EXPECT_EQ(root->items[4].kind, Kind::kSigned);
  EXPECT_EQ(root->items[5].kind, Kind::kDouble);
  EXPECT_EQ(ErrorOf("{\"a\":\n  1e999}"), "f.json:2:3: $.a: number \"1e999\" is out of range");
}

TEST(JsonText, AByteOrderMarkTakesNoColumn) {
  const auto root = ParseJson("\xEF\xBB\xBF{\"a\":1}", "f");
  ASSERT_TRUE(root);
  EXPECT_EQ(root->members[0].key_position, (TextPosition{1, 2}));
}

TEST(JsonText, RepeatedKeyNamesBothPlaces) {
  EXPECT_EQ(ErrorOf("{\"t\": [{\"a\": 1,\n  \"b\": 2,\n  \"a\": 3}]}"),
            "f.json:3:3: $.t[0].a: key \"a\" appears twice in one object, first at line 1 column 9");
  EXPECT_TRUE(ParseJson("[{\"a\":1},{\"a\":{\"a\":2}}]", "f"));
}

TEST(JsonText, SyntaxErrorsNamePlacePathAndWhatWasExpected) {
  constexpr std::string_view kValue = "; expected a value: a string, number, true, false, null, '{' or '['";
  const auto value_error = [&](std::string_view place, std::string_view near) {
    return fmt::format("f.json:{}: syntax error at {}{}", place, near, kValue);
  };
  EXPECT_EQ(ErrorOf(""), value_error("1:1: $", "the end of the text"));
  EXPECT_EQ(ErrorOf(" // only\n"), value_error("2:1: $", "the end of the text"));
  EXPECT_EQ(ErrorOf("{\"a\":\n  }"), value_error("2:3: $.a", "\"}\""));
  EXPECT_EQ(ErrorOf("[1,\n ,2]"), value_error("2:2: $[1]", "\",2]\""));
  EXPECT_EQ(ErrorOf("[1, 2,]"), value_error("1:7: $[2]", "\"]\""));
  EXPECT_EQ(ErrorOf("{\"a\": /* x */ nul}"), value_error("1:15: $.a", "\"nul}\""));
  EXPECT_EQ(ErrorOf("{\"a\": [:]}"), value_error("1:8: $.a[0]", "\":]}\""));
  EXPECT_EQ(ErrorOf("{\n  a: 1}"), "f.json:2:3: $: syntax error at \"a: 1}\"; expected a key in double quotes or '}'");
  EXPECT_EQ(ErrorOf("{\"a\": 1,}"), "f.json:1:9: $: syntax error at \"}\"; expected a key in double quotes or '}'");
  EXPECT_EQ(ErrorOf("{\"a\" \"b\"}"), "f.json:1:6: $.a: syntax error at \"\\\"b\\\"}\"; expected ':'");
  EXPECT_EQ(ErrorOf("{\"a\": 1\n \"b\": 2}"), "f.json:2:2: $: syntax error at \"\\\"b\\\": 2}\"; expected ',' or '}'");
  EXPECT_EQ(ErrorOf("[[1 2]]"), "f.json:1:5: $[0][1]: syntax error at \"2]]\"; expected ',' or ']'");
  EXPECT_EQ(ErrorOf("{\"a\": [1}"), "f.json:1:9: $.a[1]: syntax error at \"}\"; expected ',' or ']'");
  EXPECT_EQ(ErrorOf("{\"a\": 1"), "f.json:1:8: $: syntax error at the end of the text; expected ',' or '}'");
}

TEST(JsonText, BadTokensAreShownWhereTheyBreak) {
  const auto starts = [](std::string_view text, std::string_view beginning) {
    EXPECT_TRUE(ErrorOf(text).starts_with(beginning)) << ErrorOf(text) << "\nwanted " << beginning;
  };
  starts("{\"a\": \"x\n\"}", "f.json:1:9: $.a: syntax error at \"\\x0a\\\"}\": invalid string: control character");
  starts("[\"\xff\"]", "f.json:1:3: $[0]: syntax error at \"\\xff\\\"]\": invalid string: ill-formed UTF-8 byte");
  starts("[\"\\q\"]", "f.json:1:4: $[0]: syntax error at \"q\\\"]\": invalid string: forbidden character");
  starts("[1,\n  \"abc", "f.json:2:3: $[1]: syntax error at \"\\\"abc\": invalid string: missing closing quote");
  starts("[1.]", "f.json:1:4: $[0]: syntax error at \"]\": invalid number; expected digit after '.'");
  starts("[1,\n/* open", "f.json:2:1: $[1]: syntax error at \"/* open\": invalid comment; missing closing '*/'");
  starts("[1, / 2]", "f.json:1:5: $[1]: syntax error at \"/ 2]\": invalid comment");
}

TEST(JsonText, TextAfterTheRootIsAnErrorAndCommentsAreNot) {
  EXPECT_EQ(ErrorOf("{} {}"), "f.json:1:4: $: text after the end of the value: \"{}\"");
  EXPECT_EQ(ErrorOf("{}\n// c\n  , 1"), "f.json:3:3: $: text after the end of the value: \", 1\"");
  EXPECT_EQ(ErrorOf("1 @"), "f.json:1:3: $: text after the end of the value: \"@\"");
  EXPECT_EQ(ErrorOf("{} // c\n/* d */ \n"), "(accepted)");
}

TEST(JsonText, ANulByteNeverCutsTheTextShort) {
  EXPECT_EQ(ErrorOf(std::string_view("{}\n\0junk", 8)), "f.json:2:1: $: NUL byte; expected UTF-8 text");
  EXPECT_EQ(ErrorOf(std::string_view("{\"a\0\":1}", 8)), "f.json:1:4: $: NUL byte; expected UTF-8 text");
  EXPECT_EQ(ErrorOf("[\"\\u0000\"]"), "(accepted)");
}

TEST(JsonText, LimitsAreNamed) {
  EXPECT_EQ(ErrorOf(std::string(64, '[') + std::string(64, ']')), "(accepted)");
  const std::string deep = ErrorOf(std::string(100000, '['));
  EXPECT_TRUE(deep.starts_with("f.json:1:65: $[0][0]")) << deep;
  EXPECT_TRUE(deep.ends_with("nested deeper than 64 levels")) << deep;
  EXPECT_EQ(ErrorOf("[1,2,3]", {.max_bytes = 6}), "f.json:1:1: $: 7 bytes of JSON, the limit is 6");
  EXPECT_EQ(ErrorOf("[1,2,\n3]", {.max_values = 3}), "f.json:2:1: $[2]: more than 3 values");
  EXPECT_EQ(ErrorOf("\"" + std::string((1 << 20) - 2, 'x') + "\""), "(accepted)");
}

TEST(JsonText, LongKeysDoNotMakeLongPaths) {
  const auto root = ParseJson("{\"" + std::string(100000, 'k') + "\": [1, 2]}", "f");
  ASSERT_TRUE(root);
  EXPECT_LT(root->members[0].value.items[1].path.size(), 100u);
}

TEST(JsonMessages, DescribeValuesAndQuoteAnyBytes) {
  const auto root = ParseJson("[null, true, -7, 1.50, \"a\\nb\", [1,2], {\"a\":1}]", "f");
  ASSERT_TRUE(root);
  const std::array<std::string, 7> wanted = {"null", "true", "-7", "1.50", "\"a\\x0ab\"", "an array of 2", "an object"};
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(DescribeJson(root->items[i]), wanted[i]);
  EXPECT_EQ(QuoteForMessage("内存\xff\x7f"), "\"内存\\xff\\x7f\"");
  EXPECT_EQ(QuoteForMessage("abcdef", 3), "\"abc...\"");
  EXPECT_EQ(QuoteForMessage("内存", 4), "\"内...\"");
  const auto error = JsonError("f", root->items[2], "got {}", DescribeJson(root->items[2]));
  EXPECT_EQ(error.error().message(), "f:1:14: $[2]: got -7");
}

TEST(JsonMessages, NearestNameFindsTyposAndNothingElse) {
  constexpr std::array<std::string_view, 4> kNames = {"type", "capacity", "priority", "tags"};
  EXPECT_EQ(NearestName("capcity", kNames), "capacity");
  EXPECT_EQ(NearestName("CAPACITY", kNames), "capacity");
  EXPECT_EQ(NearestName("tpye", kNames), "type");
  EXPECT_EQ(NearestName("tag", kNames), "tags");
  EXPECT_EQ(NearestName("bandwidth", kNames), std::nullopt);
  EXPECT_EQ(NearestName("", kNames), std::nullopt);
  EXPECT_EQ(NearestName(std::string(100000, 'c'), kNames), std::nullopt);
  EXPECT_EQ(DidYouMean("prioritiy", kNames), " (did you mean \"priority\"?)");
}

// The character at a position; columns count code points.
char CharAt(std::string_view text, TextPosition position) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  for (uint32_t line = 1; line < position.line; ++line) text.remove_prefix(text.find('\n') + 1);
  size_t i = 0;
  for (uint32_t column = 1; column < position.column; ++column) {
    do ++i;
    while ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80);
  }
  return text[i];
}

void ExpectPositionsPointAtTokens(std::string_view text, const JsonValue& value) {
  const char c = CharAt(text, value.position);
  switch (value.kind) {
    case Kind::kObject:
      ASSERT_EQ(c, '{');
      break;
    case Kind::kArray:
      ASSERT_EQ(c, '[');
      break;
    case Kind::kString:
      ASSERT_EQ(c, '"');
      break;
    case Kind::kNull:
      ASSERT_EQ(c, 'n');
      break;
    case Kind::kBool:
      ASSERT_EQ(c, value.bool_value ? 't' : 'f');
      break;
    default:
      ASSERT_EQ(c, value.text.front());
  }
  for (const JsonValue& item : value.items) ExpectPositionsPointAtTokens(text, item);
  for (const JsonMember& member : value.members) {
    ASSERT_EQ(CharAt(text, member.key_position), '"');
    ExpectPositionsPointAtTokens(text, member.value);
  }
}

std::string Mutate(std::string text, std::mt19937_64& random) {
  static constexpr std::string_view kPieces[] = {"{",     "}",       "[",       "]",     ":",    ",",
                                                 "\"",    "\\",      "//",      "/*",    "*/",   "\n",
                                                 "\r",    " ",       "-",       "1e9",   "0",    "99999999999999999999",
                                                 "1e999", "null",    "true",    "\"a\"", "\xff", "\xe4\xb8",
                                                 "键",    "\\u0000", "\\ud800", "\t"};
  for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
    const size_t at = text.empty() ? 0 : random() % text.size();
    switch (random() % 5) {
      case 0:
        text.erase(at, 1 + random() % 8);
        break;
      case 1:
        text.insert(at, kPieces[random() % std::size(kPieces)]);
        break;
      case 2:
        if (!text.empty()) text[at] = static_cast<char>(random());
        break;
      case 3:
        text.insert(at, text.substr(random() % (text.size() + 1), random() % 32));
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

TEST(JsonText, MutatedTextsAgreeWithTheParserUnderneathAndPointIntoTheText) {
  const std::string_view seeds[] = {
      "{\"tiers\": [{\"type\": \"DRAM\", \"capacity\": 536870912, // 512MB\n \"tags\": [\"a\", \"b\"]}]}",
      "[1, -2, 3.5e-7, [true, false, null, {\"k\\\\\\\"\": \"v\\u4e2d\\n\"}], /* c */ {}]",
      "\xEF\xBB\xBF{\"键\" : {\"a\":[[[]]]}} // 尾"};
  std::mt19937_64 random(20240607);
  size_t accepted = 0;
  for (int round = 0; round < 60000; ++round) {
    const std::string text = Mutate(std::string(seeds[random() % std::size(seeds)]), random);
    const auto result = ParseJson(text, "f");
    const bool valid = nlohmann::json::accept(text, /*ignore_comments=*/true) && !text.contains('\0');
    if (result) {
      ++accepted;
      ASSERT_TRUE(valid) << text;
      ASSERT_NO_FATAL_FAILURE(ExpectPositionsPointAtTokens(text, *result)) << text;
      continue;
    }
    const std::string& message = result.error().message();
    ASSERT_TRUE(!valid || message.contains("appears twice")) << text << "\n" << message;
    uint32_t line = 0, column = 0;
    ASSERT_EQ(std::sscanf(message.c_str(), "f:%u:%u: $", &line, &column), 2) << message;
    ASSERT_LE(line, 1u + static_cast<uint32_t>(std::ranges::count(text, '\n')));
    ASSERT_LE(column, text.size() + 1);
  }
  EXPECT_GT(accepted, 1000u) << "mutations should leave some texts valid";
}

}  // namespace
}  // namespace mooncake
