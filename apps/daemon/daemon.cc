// Flags, signals and start-up lines of the daemons.
#include "daemon/daemon.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gflags/gflags.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/version.h"

DECLARE_bool(help);
DECLARE_bool(version);

// Exported by the library, in no header of it: what it ends the process with on a flag it cannot take, with 1.
namespace GFLAGS_NAMESPACE {
extern void (*gflags_exitfunc)(int);
}

namespace mooncake::daemon {
namespace {

// Not 1: to callers that means that the program worked and failed (wrong bytes, a missed measurement).
constexpr int kWrongUsage = 2;

sigset_t EndSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

void PrintHelp(const char* program, const std::string& usage, std::span<const env::Variable* const> variables) {
  fmt::print("{}\n\nFlags (--name value, --name=value, --noname for booleans):\n", usage);
  std::vector<gflags::CommandLineFlagInfo> flags;
  gflags::GetAllFlags(&flags);
  const std::string own = std::string(program) + "/";
  for (const auto& flag : flags) {
    if (flag.filename.find(own) == std::string::npos) continue;
    fmt::print("  --{} ({}, default \"{}\")\n      {}\n", flag.name, flag.type, flag.default_value, flag.description);
  }
  if (!variables.empty()) fmt::print("\nEnvironment:\n");
  for (const auto* variable : variables) fmt::print("  {}\n      {}\n", variable->name, variable->meaning);
}

// A program started with closed standard streams would get its tier memory or a socket as descriptor 2, and then log
// into it.
void FillStandardStreams() {
  int fd = 0;
  do fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) close(fd);
}

}  // namespace

void ParseFlags(int argc, char** argv, const char* program, const std::string& usage,
                std::span<const env::Variable* const> variables, const std::string& more) {
  FillStandardStreams();
  gflags::SetUsageMessage(usage);
  gflags::SetVersionString(kSoftwareVersion);
  GFLAGS_NAMESPACE::gflags_exitfunc = [](int) { std::exit(kWrongUsage); };
  gflags::ParseCommandLineNonHelpFlags(&argc, &argv, /*remove_flags=*/true);
  if (FLAGS_help) {
    PrintHelp(program, usage, variables);
    fmt::print("{}", more);
    std::exit(0);
  }
  if (FLAGS_version) {
    fmt::print("{} {}\n", program, kSoftwareVersion);
    std::exit(0);
  }
  if (argc > 1) {
    Fail(program, fmt::format("unexpected argument '{}'; see --help", argv[1]));
    std::exit(kWrongUsage);
  }
}

void BlockSignals() {
  const sigset_t set = EndSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

std::string WaitForSignal() {
  const sigset_t set = EndSignals();
  int number = 0;
  while (sigwait(&set, &number) != 0) {
  }
  return number == SIGINT ? "SIGINT" : "SIGTERM";
}

bool IsSet(const char* flag) {
  gflags::CommandLineFlagInfo info;
  return gflags::GetCommandLineFlagInfo(flag, &info) && !info.is_default;
}

std::string GivenOf(std::initializer_list<const char*> flags) {
  std::string given;
  for (const char* flag : flags) {
    if (IsSet(flag)) given += fmt::format("{}--{}", given.empty() ? "" : ", ", flag);
  }
  return given;
}

Result<uint16_t> Port(int32_t value, const char* flag, int32_t least) {
  if (value >= least && value <= UINT16_MAX) return static_cast<uint16_t>(value);
  return Error(ErrorCode::INVALID_PARAMS, "--{} {}: a port is {} to {}", flag, value, least, UINT16_MAX);
}

int Main(int argc, char** argv, const char* program, const std::string& usage,
         std::span<const env::Variable* const> variables, Result<void> (*run)(), const std::string& more) {
  ParseFlags(argc, argv, program, usage, variables, more);
  BlockSignals();
  const Result<void> ran = run();
  return ran ? 0 : Fail(program, ran.error());
}

int Fail(const char* program, const std::string& reason) {
  fmt::print(stderr, "{}: {}\n", program, reason);
  return 1;
}

int Fail(const char* program, const Status& status) {
  return Fail(program, status.ToString());
}

void PrintReady(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

Result<void> CheckDeploymentMode(const std::string& mode) {
  if (mode == "P2P" || mode == "Centralization") return {};
  return Error(ErrorCode::INVALID_PARAMS,
               "--deployment_mode '{}': write P2P (Centralization is accepted and means P2P as well)", mode);
}

}  // namespace mooncake::daemon
