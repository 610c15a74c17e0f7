// How long a device takes: parameters by profile, and the links and engines that copies share. Thread safe.
#pragma once
#include <cstdint>
#include <string>

#include "core/clock.h"
#include "core/copy.h"

namespace aclemu {

// Rates in GB/s (10^9), costs in microseconds.
struct ModelParams {
  double h2d_gbps, d2h_gbps, d2d_gbps, peer_gbps;
  double host_bus_gbps;    // shared by all links of all devices; 0: no limit
  double pageable_factor;  // part of the rate that unregistered host memory reaches
  double submit_us, latency_us, sync_copy_us, sync_us, event_us;
  double malloc_small_us, malloc_large_us, malloc_page_us, free_small_us, free_large_us;
  double pin_2m_us;  // aclrtMallocHost and registration, per 2 MiB
  double set_first_us, set_other_us, set_repeat_us;
};

bool ModelOn();
const ModelParams& Model();
// False when there is no such parameter. For settings, before the model is used.
bool SetModelProfile(const std::string& profile);
bool SetModelParam(const std::string& name, double value);
bool GetModelParam(const std::string& name, double* value);
std::string ModelParamNames();

inline Clock::duration Microseconds(double us) {
  return Clock::duration(static_cast<Clock::rep>(us * 1000));
}

// The time the calling thread's present call ought to end. Costs add up from its begin, so that the emulator's own work
// hides in them. All do nothing when the model is off.
void BeginCallTime();
Clock::time_point Due(double us);  // adds a cost, does not wait
void Charge(double us);            // adds a cost and waits
// The fixed cost of copies, which a call that makes many of them pays once.
Clock::time_point DueOnce(double us);
void ChargeOnce(double us);
void ChargeUntil(Clock::time_point time);

// Takes the way of a copy for some bytes, from ready on at the earliest. All in model time: who comes late by the wall
// clock loses nothing. Copies of one way follow each other. Returns the end.
struct Way {
  Direction direction;
  int device;         // whose link; of a device copy the source's engine
  bool peer;          // device copy to another device
  bool pageable;      // a host end is unregistered
  double slower = 1;  // times as long
};
Way WayOf(const Place& dst, const Place& src);
double RateOf(const Way& way);  // bytes per nanosecond
Clock::time_point Reserve(const Way& way, Clock::time_point ready, double latency_us, uint64_t bytes);

// Costs of the memory functions.
void ChargeMalloc(uint64_t bytes);
void ChargeFree(uint64_t bytes);
void ChargePin(uint64_t bytes);
// repeat: the device was set before by this process.
void ChargeSetDevice(bool repeat);

}  // namespace aclemu
