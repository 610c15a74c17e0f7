// Checks a message before anything is allocated for it.
#include "rpc/codec.h"

namespace mooncake::rpc::internal {
namespace {

constexpr uint32_t kMaxDepth = 32;
constexpr uint64_t kMaxElements = 8u << 20;

// Walks the bytes without keeping anything. A well-formed message has at least one byte per element, so what passes
// here costs the real parser memory in proportion to its size, whatever its length fields claim.
class BoundsVisitor : public msgpack::null_visitor {
 public:
  bool start_array(uint32_t count) { return Enter(count); }
  bool end_array() { return Leave(); }
  bool start_map(uint32_t pairs) { return Enter(2 * uint64_t{pairs}); }
  bool end_map() { return Leave(); }

 private:
  bool Enter(uint64_t count) {
    elements_ += count;
    return elements_ <= kMaxElements && ++depth_ <= kMaxDepth;
  }
  bool Leave() {
    --depth_;
    return true;
  }

  uint64_t elements_ = 0;
  uint32_t depth_ = 0;
};

bool ReferToInput(msgpack::type::object_type, size_t, void*) {
  return true;
}

}  // namespace

Result<msgpack::object_handle> ParseMessage(std::string_view bytes) {
  try {
    size_t end = 0;
    BoundsVisitor bounds;
    if (!msgpack::parse(bytes.data(), bytes.size(), end, bounds) || end != bytes.size()) {
      return Error(ErrorCode::INVALID_PARAMS, "message of {} bytes is malformed, too deep or too large", bytes.size());
    }
    return msgpack::unpack(bytes.data(), bytes.size(), &ReferToInput);
  } catch (const std::exception& error) {
    return Error(ErrorCode::INVALID_PARAMS, "message of {} bytes is malformed: {}", bytes.size(), error.what());
  }
}

}  // namespace mooncake::rpc::internal
