// Between Python objects and the vocabulary of the client: keys, addresses, buffers, lists of codes. Written on the C
// API because batches of small objects are converted item by item. All of it needs the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace mooncake::python {

namespace py = pybind11;

// TypeError "CALL(): NAME must be WANTED, not TYPE".
[[noreturn]] void RaiseWrongType(const char* name, const char* wanted, py::handle got);

// The bytes of a str (UTF-8) or bytes object, without a copy: valid as long as the object.
std::string_view KeyOf(py::handle object);
// A copy of the text of a str.
std::string TextOf(py::handle object, const char* name);
// An int (or what has __index__) from 0 to 2^64 - 1.
uint64_t UnsignedOf(py::handle object, const char* name);

// A sequence of keys, and the objects behind them: the views stay valid whatever other threads do to the caller's list.
// A single str or bytes is refused although Python counts it as a sequence.
class KeyList {
 public:
  explicit KeyList(py::handle sequence);
  std::span<const std::string_view> views() const { return views_; }
  size_t size() const { return views_.size(); }
  std::vector<std::string> Copies() const { return {views_.begin(), views_.end()}; }

 private:
  py::tuple objects_;
  std::vector<std::string_view> views_;
};

// A sequence of ints as UnsignedOf takes them.
std::vector<uint64_t> UnsignedList(py::handle sequence, const char* name);

// The memory of a bytes-like object, which is pinned (cannot be resized or freed) while this lives.
class PinnedBytes {
 public:
  // TypeError unless `object` offers a contiguous buffer.
  PinnedBytes(py::handle object, const char* name);
  ~PinnedBytes() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  PinnedBytes(PinnedBytes&& other) noexcept : view_(std::exchange(other.view_, {})) {}
  PinnedBytes& operator=(PinnedBytes&&) = delete;

  // Sources are only read; the client's ranges are writable because one type serves both directions.
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(view_.buf), static_cast<size_t>(view_.len)}; }

 private:
  Py_buffer view_{};
};

// A new bytes object with a copy of `source`; large copies are made without the GIL.
py::bytes CopyToBytes(std::span<const std::byte> source);

// New lists, without the per-item cost of casters.
py::list IntList(std::span<const int64_t> values);
py::list RepeatedInt(int64_t value, size_t count);

inline int64_t CodeOf(const Status& status) {
  return ToInt(status.code());
}

}  // namespace mooncake::python
