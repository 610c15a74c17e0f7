// Letting go of Python's interpreter lock (GIL) around calls that may block.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

namespace mooncake::python {

// Holds the GIL released for its scope. Nothing of Python may be touched inside, reference counts included.
//
// Taking the GIL again while the interpreter is ending makes CPython (before 3.14) end the thread by unwinding its
// stack, which would run destructors of Python objects without the GIL, or terminate the process in a destructor.
// Such a thread stops here instead, until the process is gone; the interpreter does not wait for daemon threads.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      for (;;) pause();
    }
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace mooncake::python
