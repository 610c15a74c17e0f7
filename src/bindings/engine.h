// TransferEngine: one engine behind Python's conventions (codes, addresses as ints, batches as numbers).
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "bindings/shared_engine.h"
#include "capi/engine_options.h"
#include "capi/engine_session.h"

namespace mooncake::python {

namespace py = pybind11;

// Every method may be called from any Python thread at any time; blocking work is done without the GIL. Ctrl-C ends a
// call that waits for a transfer; one that looks for its target or only notifies ends with its answer, or when that is
// given up. Before initialize() and in a child made by fork() calls fail. Reasons of failures are logged.
class Engine {
 public:
  Engine();
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int64_t Initialize(py::handle local_hostname, py::handle metadata_server, py::handle protocol,
                     py::handle device_name);
  int64_t InitializeExt(py::handle local_hostname, py::handle metadata_server, py::handle protocol,
                        py::handle device_name, py::handle metadata_type);
  int64_t RpcPort() const;

  int64_t RegisterMemory(py::handle address, py::handle capacity, py::handle location);
  int64_t UnregisterMemory(py::handle address);
  int64_t BatchRegisterMemory(py::handle addresses, py::handle capacities, py::handle location);
  int64_t BatchUnregisterMemory(py::handle addresses);
  uint64_t AllocateManagedBuffer(py::handle length);
  int64_t FreeManagedBuffer(py::handle address, py::handle length);
  int64_t WriteBytes(py::handle address, py::handle bytes, py::handle length);
  py::bytes ReadBytes(py::handle address, py::handle length);

  // Of one piece, and of many.
  int64_t TransferSync(const char* name, py::handle target, py::handle buffer, py::handle peer, py::handle length,
                       TransferOpcode opcode, py::handle notify);
  int64_t BatchTransferSync(const char* name, py::handle target, py::handle buffers, py::handle peers,
                            py::handle lengths, TransferOpcode opcode, py::handle notify);
  int64_t SubmitWrite(py::handle target, py::handle buffer, py::handle peer, py::handle length);
  uint64_t BatchTransferAsync(const char* name, py::handle target, py::handle buffers, py::handle peers,
                              py::handle lengths, TransferOpcode opcode);
  int64_t CheckStatus(py::handle number);
  int64_t BatchStatus(py::handle numbers);

  py::str LocalTopology(py::handle device_name) const;
  uint64_t FirstBufferAddress(py::handle segment_name);
  py::list Notifies();
  int64_t SendProbe(py::handle session);
  py::object GetEngine() const;
  uint64_t EnginePointer() const;

  // For the end of the interpreter: ends the engines of all objects of this process.
  static void CloseAll();

 private:
  using Interrupted = EngineSession::Interrupted;

  int64_t Open(const char* call, const EngineArguments& arguments);
  std::shared_ptr<EngineSession> Session() const;
  std::shared_ptr<EngineSession> TakeSession();

  // work(session, interrupted) without the GIL; a failure is logged once with `about`. Throws what a signal handler
  // raised meanwhile.
  template <typename Work>
  auto Run(const char* call, const std::string& about, const Work& work) const
      -> decltype(work(std::declval<EngineSession&>(), std::declval<const Interrupted&>()));

  mutable std::mutex mutex_;  // held for copies of the pointer, always under the GIL
  std::shared_ptr<EngineSession> session_;
  uint64_t generation_ = 0;  // of the process that initialized it
  bool opening_ = false;
};

}  // namespace mooncake::python
