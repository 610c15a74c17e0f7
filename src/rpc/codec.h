// Messages to bytes and back: msgpack maps with named fields, so that both sides may add fields freely.
//
//   struct GetReply { uint64_t size = 0; std::vector<Uuid> owners; MSGPACK_DEFINE_MAP(size, owners); };
//
// A field the reader does not know is ignored, one the writer did not send keeps its default.
#pragma once

#ifndef MSGPACK_NO_BOOST
#define MSGPACK_NO_BOOST
#endif
#include <msgpack.hpp>

#include <string>
#include <string_view>

#include "common/content_stamp.h"
#include "common/digest.h"
#include "common/status.h"
#include "common/uuid.h"

// Error codes travel as their number.
MSGPACK_ADD_ENUM(mooncake::ErrorCode);

namespace msgpack {
MSGPACK_API_VERSION_NAMESPACE(MSGPACK_DEFAULT_API_NS) {
  namespace adaptor {

  // Both 128-bit types are an array of two numbers.
  template <>
  struct pack<mooncake::Uuid> {
    template <typename Stream>
    packer<Stream>& operator()(packer<Stream>& out, const mooncake::Uuid& id) const {
      return out.pack_array(2).pack(id.first).pack(id.second);
    }
  };

  template <>
  struct convert<mooncake::Uuid> {
    const msgpack::object& operator()(const msgpack::object& in, mooncake::Uuid& id) const {
      if (in.type != msgpack::type::ARRAY || in.via.array.size != 2) throw msgpack::type_error();
      in.via.array.ptr[0].convert(id.first);
      in.via.array.ptr[1].convert(id.second);
      return in;
    }
  };

  template <>
  struct pack<mooncake::KeyDigest> {
    template <typename Stream>
    packer<Stream>& operator()(packer<Stream>& out, const mooncake::KeyDigest& digest) const {
      return out.pack_array(2).pack(digest.low).pack(digest.high);
    }
  };

  template <>
  struct convert<mooncake::KeyDigest> {
    const msgpack::object& operator()(const msgpack::object& in, mooncake::KeyDigest& digest) const {
      if (in.type != msgpack::type::ARRAY || in.via.array.size != 2) throw msgpack::type_error();
      in.via.array.ptr[0].convert(digest.low);
      in.via.array.ptr[1].convert(digest.high);
      return in;
    }
  };

  // [time, writer, upserted]
  template <>
  struct pack<mooncake::ContentStamp> {
    template <typename Stream>
    packer<Stream>& operator()(packer<Stream>& out, const mooncake::ContentStamp& stamp) const {
      return out.pack_array(3).pack(stamp.hlc).pack(stamp.writer).pack(stamp.upserted);
    }
  };

  template <>
  struct convert<mooncake::ContentStamp> {
    const msgpack::object& operator()(const msgpack::object& in, mooncake::ContentStamp& stamp) const {
      if (in.type != msgpack::type::ARRAY || in.via.array.size != 3) throw msgpack::type_error();
      in.via.array.ptr[0].convert(stamp.hlc);
      in.via.array.ptr[1].convert(stamp.writer);
      in.via.array.ptr[2].convert(stamp.upserted);
      return in;
    }
  };

  }  // namespace adaptor
}
}  // namespace msgpack

namespace mooncake::rpc {

namespace internal {
struct StringSink {
  std::string& out;
  void write(const char* data, size_t bytes) { out.append(data, bytes); }
};
// Refuses what is not exactly one well-formed value, nested deeper than 32 or of more than 8 Mi elements, before
// anything is allocated. The result refers to `bytes`.
Result<msgpack::object_handle> ParseMessage(std::string_view bytes);
}  // namespace internal

template <typename T>
std::string Encode(const T& message) {
  std::string bytes;
  internal::StringSink sink{bytes};
  msgpack::pack(sink, message);
  return bytes;
}

// INVALID_PARAMS for bytes that are not a T. Never throws; memory use is proportional to the size of `bytes`.
template <typename T>
Result<T> Decode(std::string_view bytes) {
  const msgpack::object_handle parsed = MC_TRY(internal::ParseMessage(bytes));
  try {
    T message;
    parsed.get().convert(message);
    return message;
  } catch (const std::exception& error) {
    return Error(ErrorCode::INVALID_PARAMS, "message of {} bytes has a field of the wrong type: {}", bytes.size(),
                 error.what());
  }
}

}  // namespace mooncake::rpc
