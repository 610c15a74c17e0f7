// What the programs share: flags that teach, signals that end them, one ready line.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "common/env.h"
#include "common/status.h"

namespace mooncake::daemon {

// Parses gflags. --help prints the usage and this program's flags to stdout and exits 0; an unknown or malformed flag,
// or an argument that is no flag, prints the reason and exits 2. `variables`: what --help lists as its environment;
// `more` is printed after it.
void ParseFlags(int argc, char** argv, const char* program, const std::string& usage,
                std::span<const env::Variable* const> variables, const std::string& more = {});

// main() of a program that runs until a signal ends it: parses the flags, blocks the signals, runs, says why it failed.
int Main(int argc, char** argv, const char* program, const std::string& usage,
         std::span<const env::Variable* const> variables, Result<void> (*run)(), const std::string& more = {});

// Blocks SIGINT and SIGTERM for this thread and those it starts. Call before the first thread.
void BlockSignals();
// Waits for one of them; returns its name.
std::string WaitForSignal();

// True when the user gave the flag.
bool IsSet(const char* flag);
// "--a, --b" of those flags that the user gave, else empty.
std::string GivenOf(std::initializer_list<const char*> flags);

// The port given as --`flag`. INVALID_PARAMS unless it is `least` to 65535.
Result<uint16_t> Port(int32_t value, const char* flag, int32_t least = 0);

// Prints the reason on stderr and returns the exit code 1.
int Fail(const char* program, const Status& status);
int Fail(const char* program, const std::string& reason);

// One line on stdout, flushed, for people and scripts that wait for it.
void PrintReady(const std::string& line);

// P2P is the only mode; both names of the contract are accepted.
Result<void> CheckDeploymentMode(const std::string& mode);

}  // namespace mooncake::daemon
