// What a DataSource may hold: memory of a tier, or memory of somebody else, on the host or on an NPU.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "common/status.h"
#include "device/memory_type.h"
#include "device/npu_runtime.h"

namespace mooncake {

// A run of bytes somewhere. Which kind of memory it is, is its dynamic type: copiers check it before they touch it.
class BufferBase {
 public:
  virtual ~BufferBase() = default;
  virtual size_t size() const = 0;
};

// Bytes the CPU can read and write.
class HostBuffer : public BufferBase {
 public:
  virtual std::byte* data() const = 0;
};

// Bytes on an NPU.
class AscendBufferBase : public BufferBase {
 public:
  virtual AscendUnifiedPointer pointer() const = 0;
  virtual NpuRuntime& runtime() const = 0;
};

// Somebody else's host memory; the caller keeps it alive.
class RefBuffer final : public HostBuffer {
 public:
  RefBuffer(std::byte* data, size_t size) : data_(data), size_(size) {}
  size_t size() const override { return size_; }
  std::byte* data() const override { return data_; }

 private:
  std::byte* data_;
  size_t size_;
};

// Somebody else's NPU memory; the caller keeps it and the runtime alive.
class AscendRefBuffer final : public AscendBufferBase {
 public:
  AscendRefBuffer(AscendUnifiedPointer pointer, size_t size, NpuRuntime& runtime)
      : pointer_(pointer), size_(size), runtime_(runtime) {}
  size_t size() const override { return size_; }
  AscendUnifiedPointer pointer() const override { return pointer_; }
  NpuRuntime& runtime() const override { return runtime_; }

 private:
  AscendUnifiedPointer pointer_;
  size_t size_;
  NpuRuntime& runtime_;
};

// Host memory of its own, for copies that need a stop on the way.
class TempDRAMBuffer final : public HostBuffer {
 public:
  // NO_AVAILABLE_HANDLE when the host has no memory for it.
  static Result<std::unique_ptr<TempDRAMBuffer>> Create(size_t size);
  size_t size() const override { return size_; }
  std::byte* data() const override { return data_.get(); }

 private:
  TempDRAMBuffer(std::unique_ptr<std::byte[]> data, size_t size) : data_(std::move(data)), size_(size) {}
  std::unique_ptr<std::byte[]> data_;
  size_t size_;
};

// A buffer and the kind of memory it claims to be. A null buffer stands for zero bytes. Move only.
struct DataSource {
  std::unique_ptr<BufferBase> buffer;
  MemoryType type = MemoryType::UNKNOWN;

  size_t size() const { return buffer ? buffer->size() : 0; }

  static DataSource Host(std::byte* data, size_t size) {
    return {std::make_unique<RefBuffer>(data, size), MemoryType::DRAM};
  }
  // Copies only read their source, so a borrowed constant source is safe behind the same type.
  static DataSource Host(const std::byte* data, size_t size) { return Host(const_cast<std::byte*>(data), size); }
  static DataSource Ascend(AscendUnifiedPointer pointer, size_t size, NpuRuntime& runtime) {
    return {std::make_unique<AscendRefBuffer>(pointer, size, runtime), MemoryType::ASCEND_NPU};
  }
};

// Borrowed view of bytes [offset, offset + size) of `source`, which must outlive it. INVALID_PARAMS when the range
// leaves the source or its memory cannot be addressed.
Result<DataSource> Slice(const DataSource& source, size_t offset, size_t size);

}  // namespace mooncake
