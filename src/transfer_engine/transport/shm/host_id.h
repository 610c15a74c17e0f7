// Which processes can hand each other their memory.
#pragma once

#include <string>

namespace mooncake {

// Equal in two processes exactly when they share the kernel and the network namespace, to which abstract sockets
// belong: then each can ask the other for its memfds. Other namespaces do not matter, since memory comes as a
// descriptor. "" when the host does not tell (no /proc): then nothing is shared. Any thread.
std::string HostId();

}  // namespace mooncake
