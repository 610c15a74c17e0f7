// Parsing of host:port texts.
#include "common/endpoint.h"

#include <charconv>

namespace mooncake {
namespace {

Result<uint16_t> ParsePort(std::string_view digits, std::string_view whole) {
  uint32_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port > 65535) {
    return Error(ErrorCode::INVALID_PARAMS, "'{}': port '{}' is not a number in 0..65535", whole, digits);
  }
  return static_cast<uint16_t>(port);
}

}  // namespace

Result<Endpoint> Endpoint::Parse(std::string_view text, uint16_t default_port) {
  if (text.contains("://")) return Error(ErrorCode::INVALID_PARAMS, "'{}': write host:port, without a scheme", text);
  Endpoint endpoint;
  endpoint.port = default_port;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return Error(ErrorCode::INVALID_PARAMS, "'{}': missing ']'", text);
    endpoint.host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty()) {
      if (rest.front() != ':') return Error(ErrorCode::INVALID_PARAMS, "'{}': expected ':port' after ']'", text);
      endpoint.port = MC_TRY(ParsePort(rest.substr(1), text));
    }
  } else if (const size_t colon = text.find(':');
             colon != std::string_view::npos && text.find(':', colon + 1) == std::string_view::npos) {
    endpoint.host = text.substr(0, colon);
    endpoint.port = MC_TRY(ParsePort(text.substr(colon + 1), text));
  } else {
    endpoint.host = text;  // a plain host, or an IPv6 address without brackets
  }
  if (endpoint.host.empty()) return Error(ErrorCode::INVALID_PARAMS, "'{}': no host before the port", text);
  return endpoint;
}

std::string Endpoint::ToString() const {
  if (host.find(':') != std::string::npos) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

}  // namespace mooncake
