// The process at the far end of a test: an EngineShell behind stdin and stdout. Dies with the test that started it.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <string>

#include "transfer/engine_shell.h"
#include "transfer/far_end.h"

int main() {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() == 1) return 1;
  mooncake::transfer_test::AllowManyFiles();
  mooncake::transfer_test::EngineShell shell;
  for (std::string line; std::getline(std::cin, line);) std::cout << shell.Execute(line) << std::endl;
  return 0;
}
