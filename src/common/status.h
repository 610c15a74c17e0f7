// The one error idiom of this code base: Result<T> carries a value or a Status that says what failed, where and why.
#pragma once

#include <fmt/format.h>

#include <expected>
#include <string>
#include <utility>

#include "common/error_code.h"

namespace mooncake {

// Why an operation failed. `code` is for branches, `message` for people (operation, sizes, place), `vendor_code` is the
// number the device runtime or the system returned (0 when there is none).
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message, int32_t vendor_code = 0)
      : code_(code), vendor_code_(vendor_code), message_(std::move(message)) {}

  ErrorCode code() const { return code_; }
  int32_t vendor_code() const { return vendor_code_; }
  const std::string& message() const { return message_; }
  bool ok() const { return code_ == ErrorCode::OK; }

  // "NO_AVAILABLE_HANDLE (-200): tier DRAM cannot hold 4096 bytes: ..."
  std::string ToString() const {
    return fmt::format("{} ({}){}{}", ErrorCodeName(code_), ToInt(code_), message_.empty() ? "" : ": ", message_);
  }

 private:
  ErrorCode code_ = ErrorCode::OK;
  int32_t vendor_code_ = 0;
  std::string message_;
};

template <typename T>
using Result = std::expected<T, Status>;

// return Error(ErrorCode::INVALID_PARAMS, "tier '{}' has capacity 0", name);
template <typename... Args>
std::unexpected<Status> Error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return std::unexpected(Status(code, fmt::format(format, std::forward<Args>(args)...)));
}

// Same error with a line in front, for a layer that knows more than the leaf did.
inline std::unexpected<Status> Annotate(const Status& status, std::string_view context) {
  return std::unexpected(Status(status.code(), fmt::format("{}: {}", context, status.message()), status.vendor_code()));
}

// Value of a Result, or return its error from the enclosing function: auto handle = MC_TRY(backend.Get(key));
#define MC_TRY(expression)                                       \
  ({                                                             \
    auto&& mc_try_result_ = (expression);                        \
    if (!mc_try_result_.has_value()) [[unlikely]]                \
      return std::unexpected(std::move(mc_try_result_).error()); \
    ::mooncake::internal::TakeValue(std::move(mc_try_result_));  \
  })

namespace internal {
template <typename T>
T TakeValue(std::expected<T, Status>&& result) {
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}
}  // namespace internal

}  // namespace mooncake
