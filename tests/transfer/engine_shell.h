// A transfer engine and memory driven by lines of text: what the process at the far end of a test runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>

#include "device/memory_range.h"
#include "device/npu_runtime.h"
#include "transfer_engine/transfer_engine.h"

namespace mooncake::transfer_test {

// Commands, numbers in decimal, "-" for an empty word:
//   open KEY=VALUE...                         force_tcp, same_host, strict, port, timeout_ms, protocols, devices
//                                             -> NAME CONTROL_PORT TCP_PORT SHM_SOCKET
//   close
//   map_npu LENGTH                            a block of an NPU, each time of the next one -> ADDRESS
//   map LENGTH ADDRESS MEMFD                  memory of the application, at ADDRESS unless 0; MEMFD 1: of a memfd ->
//   ADDRESS allocate LENGTH | free ADDRESS            memory of the engine, registered register ADDRESS LENGTH |
//   unregister ADDRESS fill ADDRESS LENGTH SEED POSITION | check ADDRESS LENGTH SEED POSITION hash ADDRESS LENGTH ->
//   HASH grant ADDRESS LENGTH WRITABLE             -> KEY transfer read|write SEGMENT LOCAL REMOTE LENGTH TIMEOUT_MS
//   await_notify MESSAGE TIMEOUT_MS ADDRESS LENGTH SEED POSITION
//                                             then checks at once -> NAME
//   ping
// One thread.
class EngineShell {
 public:
  EngineShell() = default;
  explicit EngineShell(TransferEngine& engine) : engine_(&engine) {}
  ~EngineShell();

  // "ok[ WORD...]" or "error CODE MESSAGE", one line.
  std::string Execute(const std::string& line);

 private:
  struct Mapping {
    size_t length = 0;
    int memfd = -1;
  };
  using Words = std::istringstream;
  using Answer = Result<std::string>;

  Answer Run(const std::string& command, Words& words);
  Answer RunWithEngine(const std::string& command, Words& words);
  Answer Open(Words& words);
  Answer Map(Words& words);
  Answer MapNpu(Words& words);
  MemoryRange Memory(uint64_t address, uint64_t length) const;
  Answer Register(Words& words);
  Answer Transfer(Words& words);
  Answer AwaitNotify(Words& words);

  std::unique_ptr<TransferEngine> own_;
  TransferEngine* engine_ = nullptr;
  std::map<uint64_t, Mapping> mappings_;
  std::shared_ptr<NpuRuntime> npu_;  // opened with the first block
  std::map<uint64_t, AscendUnifiedPointer> npu_blocks_;
};

// What the line of an answer says.
Result<std::string> ParseAnswer(const std::string& line);

}  // namespace mooncake::transfer_test
