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
  ~GilRelease() { Retake(); }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

  // True when a signal handler of Python has raised: the exception is set and is the caller's to throw, with the GIL.
  // Has an effect on the main thread only.
  bool SignalRaised() {
    Retake();
    const bool raised = PyErr_CheckSignals() != 0;
    state_ = PyEval_SaveThread();
    return raised;
  }

 private:
  void Retake() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      for (;;) pause();
    }
  }

  PyThreadState* state_;
};

}  // namespace mooncake::python
