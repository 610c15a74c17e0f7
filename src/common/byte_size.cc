// Parsing and printing of byte counts.
#include "common/byte_size.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace mooncake {
namespace {

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Power of 1024 that a unit stands for, or -1.
int UnitExponent(std::string_view unit) {
  std::string upper;
  for (char c : unit) upper.push_back(static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
  if (upper.empty() || upper == "B") return 0;
  static constexpr std::string_view kLetters = "KMGT";
  const size_t letter = kLetters.find(upper.front());
  if (letter == std::string_view::npos) return -1;
  const std::string_view rest = std::string_view(upper).substr(1);
  return rest.empty() || rest == "B" || rest == "IB" ? static_cast<int>(letter) + 1 : -1;
}

}  // namespace

Result<uint64_t> ParseByteSize(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return Error(ErrorCode::INVALID_PARAMS, "'{}' is not a byte size ({}); write 536870912, \"512MB\" or \"1.5 GB\"",
                 text, why);
  };
  const std::string_view trimmed = Trim(text);
  if (trimmed == "infinite") return std::numeric_limits<uint64_t>::max();
  const size_t digits = trimmed.find_first_not_of("0123456789.");
  const std::string_view number = trimmed.substr(0, digits);
  const std::string_view unit = digits == std::string_view::npos ? "" : Trim(trimmed.substr(digits));
  if (number.empty()) return bad("no number");
  const int exponent = UnitExponent(unit);
  if (exponent < 0) return bad("unknown unit");
  const uint64_t scale = uint64_t{1} << (10 * exponent);

  uint64_t whole = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), whole);
  if (error == std::errc::result_out_of_range) return bad("too large");
  if (error == std::errc() && end == number.data() + number.size()) {
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(whole, scale, &bytes)) return bad("too large");
    return bytes;
  }
  if (exponent == 0) return bad("not a whole number of bytes");
  double fraction = 0;
  const auto [fend, ferror] = std::from_chars(number.data(), number.data() + number.size(), fraction);
  if (ferror != std::errc() || fend != number.data() + number.size()) return bad("not a number");
  const double bytes = std::round(fraction * static_cast<double>(scale));
  if (bytes >= 18446744073709551616.0) return bad("too large");
  return static_cast<uint64_t>(bytes);
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  if (value == std::floor(value)) return fmt::format("{:.0f} {}", value, kUnits[unit]);
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace mooncake
