// Child processes of a benchmark: started before this process has threads, ended by id.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace mooncake::bench {

// One thread. The destructor kills a child that still runs and reaps it.
class Child {
 public:
  // argv[0] is looked up on PATH unless it has a slash; the child's stdin and stdout are pipes to us. The child is
  // killed when this thread ends.
  static Result<Child> Start(const std::vector<std::string>& argv);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();

  Result<void> WriteLine(const std::string& line);
  // The next line of its output, without the newline.
  Result<std::string> ReadLine(Deadline deadline);
  // All output until it closes its stdout.
  Result<std::string> ReadAll(Deadline deadline);

 private:
  Child(std::string name, pid_t pid, int to, int from)
      : name_(std::move(name)), pid_(pid), to_child_(to), from_child_(from) {}
  // False at the end of its output.
  Result<bool> ReadMore(Deadline deadline);

  std::string name_;
  pid_t pid_ = -1;
  int to_child_ = -1;
  int from_child_ = -1;
  std::string buffered_;
};

}  // namespace mooncake::bench
