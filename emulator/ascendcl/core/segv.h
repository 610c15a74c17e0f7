// Tells what a host access to device memory hit, before the process dies of it.
#pragma once

namespace aclemu {

// Installs the handler once, unless ACLEMU_SEGV=0, the program handles SIGSEGV itself, or a sanitizer does.
void ExplainHostAccess();

}  // namespace aclemu
