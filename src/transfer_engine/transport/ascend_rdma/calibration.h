// How fast a device's copies are, found out by copying.
#pragma once

#include "common/clock.h"
#include "device/npu_runtime.h"
#include "transfer_engine/transport/ascend_rdma/copy_port.h"

namespace mooncake::bridge {

// time(bytes) = overhead + bytes / bytes_per_second; the slower of the two directions.
struct CopyRates {
  Duration overhead{};
  double bytes_per_second = 0;
};

// Copies between the host memory (the bounce memory, page-locked) and a block of the device that lives meanwhile.
// Errors are those of the allocation or of a copy.
Result<CopyRates> MeasureCopies(NpuRuntime& runtime, CopyPort& port, int32_t device_id, HostRange host,
                                Duration patience);

// The chunk that makes a transfer of 64 MiB fastest if the wire is as fast as the copies: larger ones start late,
// smaller ones pay their overhead too often. Between the limits, a multiple of 64 KiB.
size_t BestChunk(const CopyRates& rates, size_t bytes_min, size_t bytes_max);

}  // namespace mooncake::bridge
