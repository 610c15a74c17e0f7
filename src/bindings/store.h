// MooncakeDistributedStore: one client of the store behind Python's conventions (codes and documented empties).
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "bindings/buffer_handle.h"
#include "bindings/gil.h"
#include "client/real_client.h"

namespace mooncake::python {

namespace py = pybind11;

// Every method may be called from any Python thread at any time. Each takes its own reference to the client, so a close
// elsewhere lets it finish or fail with SHUTTING_DOWN. Before set-up and after close the answers are empty: -600, b"",
// None or lists of them. Blocking work is done without the GIL. A child made by fork() starts as if never set up.
class Store {
 public:
  Store();
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  int64_t Setup(const py::args& args, const py::kwargs& kwargs);
  int64_t SetupP2p(const py::args& args, const py::kwargs& kwargs);
  int64_t Close();
  int64_t HealthCheck() const;
  std::string Hostname() const;

  int64_t Put(py::handle key, py::handle value, py::handle config);
  int64_t PutParts(py::handle key, const py::args& parts, const py::kwargs& kwargs);
  int64_t PutBatch(py::handle keys, py::handle values, py::handle config);
  int64_t PutFrom(py::handle key, py::handle address, py::handle size, py::handle config);
  py::list BatchPutFrom(py::handle keys, py::handle addresses, py::handle sizes, py::handle config);

  py::bytes Get(py::handle key, py::handle config);
  py::list GetBatch(py::handle keys, py::handle config);
  py::object GetBuffer(py::handle key, py::handle config);
  py::list BatchGetBuffer(py::handle keys, py::handle config);
  int64_t GetInto(py::handle key, py::handle address, py::handle size, py::handle config);
  py::list BatchGetInto(py::handle keys, py::handle addresses, py::handle sizes, py::handle config);

  int64_t IsExist(py::handle key);
  py::list BatchIsExist(py::handle keys);
  int64_t GetSize(py::handle key);
  int64_t Remove(py::handle key, bool force);
  py::list BatchRemove(py::handle keys, bool force);
  int64_t RemoveAll(bool force);

  int64_t RegisterBuffer(py::handle address, py::handle size);
  int64_t UnregisterBuffer(py::handle address);

  // For the end of the interpreter: closes the clients of all stores of this process.
  static void CloseAll();

 private:
  int64_t Open(const char* call, Result<RealClientOptions> (*read)(const py::args&, const py::kwargs&),
               const py::args& args, const py::kwargs& kwargs);
  std::shared_ptr<RealClient> Client() const;
  std::shared_ptr<RealClient> TakeClient();

  // call(client) without the GIL, or nullopt when there is no client.
  template <typename Call>
  auto WithClient(const Call& call) const -> std::optional<decltype(call(std::declval<RealClient&>()))> {
    std::shared_ptr<RealClient> client = Client();
    if (client == nullptr) return std::nullopt;
    const GilRelease release;
    const auto last_perhaps = std::move(client);  // ends before the GIL is taken again
    return call(*last_perhaps);
  }

  mutable std::mutex mutex_;  // held only for copies of the pointer, always under the GIL
  std::shared_ptr<RealClient> client_;
  uint64_t generation_ = 0;  // of the process that set it up
  bool opening_ = false;
};

}  // namespace mooncake::python
