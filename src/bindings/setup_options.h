// From the arguments of setup() and setup_p2p_real_client() to the options of a client.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "client/real_client.h"

namespace mooncake::python {

inline constexpr const char* kSetupCall = "setup";
inline constexpr const char* kSetupP2pCall = "setup_p2p_real_client";

// TypeError for arguments that Python would refuse, RuntimeError for a bad tier configuration or mode word (both with
// the full reason); everything else that is wrong is a Status. Need the GIL.
Result<RealClientOptions> ReadSetup(const pybind11::args& args, const pybind11::kwargs& kwargs);
Result<RealClientOptions> ReadSetupP2p(const pybind11::args& args, const pybind11::kwargs& kwargs);

std::string SetupDocument();
std::string SetupP2pDocument();

}  // namespace mooncake::python
