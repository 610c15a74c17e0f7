// Tells what a host access to device memory hit, before the process dies of it.
#pragma once

#include <cstdint>

namespace aclemu {

// Installs the handler once, unless ACLEMU_SEGV=0, the program handles SIGSEGV itself, or a sanitizer does.
void ExplainHostAccess();

// The same for a bus error in the mapping of a file of ACLEMU_DIR: the file system is full.
void ExplainFullFile(const void* begin, uint64_t bytes);

}  // namespace aclemu
