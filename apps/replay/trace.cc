// Reading and checking traces.
#include "replay/trace.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace mooncake::replay {
namespace {

using Json = nlohmann::json;

// A value as a message shows it.
std::string Shown(const Json& value) {
  constexpr size_t kMaxShown = 40;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

Result<const Json*> Member(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return Error(ErrorCode::INVALID_PARAMS, "\"{}\" is missing", name);
  return &*found;
}

Result<uint64_t> Count(const Json& object, const char* name) {
  const Json& value = *MC_TRY(Member(object, name));
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  return Error(ErrorCode::INVALID_PARAMS, "\"{}\" is {}, not a whole number from 0 up", name, Shown(value));
}

Result<double> Milliseconds(const Json& object, const char* name) {
  const Json& value = *MC_TRY(Member(object, name));
  if (value.is_number()) {
    if (const auto number = value.get<double>(); std::isfinite(number) && number >= 0) return number;
  }
  return Error(ErrorCode::INVALID_PARAMS, "\"{}\" is {}, not a number of milliseconds from 0 up", name, Shown(value));
}

Result<std::vector<uint64_t>> BlockIds(const Json& object) {
  const Json& list = *MC_TRY(Member(object, "hash_ids"));
  if (!list.is_array()) return Error(ErrorCode::INVALID_PARAMS, "\"hash_ids\" is {}, not a list", Shown(list));
  std::vector<uint64_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_unsigned()) {
      return Error(ErrorCode::INVALID_PARAMS, "\"hash_ids\"[{}] is {}, not a whole number from 0 up", ids.size(),
                   Shown(id));
    }
    ids.push_back(id.get<uint64_t>());
  }
  return ids;
}

Result<Json> ParseJson(std::string_view line) {
  try {
    return Json::parse(line);
  } catch (const Json::exception& e) {
    const std::string_view what = e.what();
    const size_t text = what.find("] ");  // behind the library's own numbering
    return Error(ErrorCode::INVALID_PARAMS, "not JSON: {}",
                 text == std::string_view::npos ? what : what.substr(text + 2));
  }
}

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

Result<TraceRequest> ParseTraceLine(std::string_view line) {
  const Json object = MC_TRY(ParseJson(line));
  if (!object.is_object()) return Error(ErrorCode::INVALID_PARAMS, "{} is not a JSON object", Shown(object));
  TraceRequest request;
  request.timestamp_ms = MC_TRY(Milliseconds(object, "timestamp"));
  request.input_length = MC_TRY(Count(object, "input_length"));
  request.output_length = MC_TRY(Count(object, "output_length"));
  request.block_ids = MC_TRY(BlockIds(object));
  return request;
}

Result<std::vector<TraceRequest>> LoadTrace(const std::string& path, uint64_t limit) {
  std::ifstream file(path);
  if (!file) return Error(ErrorCode::INVALID_PARAMS, "trace {}: {}", path, std::strerror(errno));
  std::vector<TraceRequest> requests;
  std::string line;
  for (uint64_t number = 1; (limit == 0 || requests.size() < limit) && std::getline(file, line); ++number) {
    if (IsBlank(line)) continue;
    auto request = ParseTraceLine(line);
    if (!request) return Annotate(request.error(), fmt::format("{}:{}", path, number));
    requests.push_back(std::move(*request));
  }
  if (file.bad()) return Error(ErrorCode::INVALID_PARAMS, "trace {}: {}", path, std::strerror(errno));
  if (requests.empty()) return Error(ErrorCode::INVALID_PARAMS, "trace {}: no requests in it", path);
  return requests;
}

}  // namespace mooncake::replay
