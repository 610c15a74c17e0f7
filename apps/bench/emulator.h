// The NPU emulator as benchmarks use it: its time model in force, and what that model says.
#pragma once

#include <optional>

namespace mooncake::bench {

// Settings of the NPU emulator that make its figures mean something: the time model `bench`, without its driver's cache
// of small blocks, and room for the tiers. Only what is not set already; without effect on a real runtime. To be called
// before the runtime is loaded.
void PrepareEmulator();

// What the emulator says about its own time model ("h2d_gbps"); nullopt on a real runtime, and before one is loaded.
std::optional<double> ModelParameter(const char* name);

}  // namespace mooncake::bench
