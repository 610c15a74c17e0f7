// Which process of a line of forks this is: a child must not use or end what belongs to its parent's threads.
#pragma once

#include <cstdint>

namespace mooncake::python {

// Counts forks on the way down. Any thread.
uint64_t ProcessGeneration();

}  // namespace mooncake::python
