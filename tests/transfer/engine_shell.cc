// Commands of a far end.
#include "transfer/engine_shell.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "common/check.h"
#include "transfer/pattern.h"

namespace mooncake::transfer_test {
namespace {

using std::chrono::milliseconds;

Result<std::vector<std::byte>> Copied(const MemoryRange& memory) {
  std::vector<std::byte> bytes(SizeOf(memory));
  MC_TRY(CopyToHost(bytes, memory));
  return bytes;
}

Result<void> CheckMemory(const MemoryRange& memory, uint64_t seed, uint64_t position) {
  if (const auto* const host = std::get_if<HostRange>(&memory)) return Check(*host, seed, position);
  return Check(MC_TRY(Copied(memory)), seed, position);
}

Result<void> FillMemory(const MemoryRange& memory, uint64_t seed, uint64_t position) {
  if (const auto* const host = std::get_if<HostRange>(&memory)) return Fill(*host, seed, position), Result<void>{};
  std::vector<std::byte> bytes(SizeOf(memory));
  Fill(bytes, seed, position);
  return CopyFromHost(memory, bytes);
}

std::vector<std::string> SplitCommas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

Result<uint64_t> Number(std::istringstream& words) {
  uint64_t number = 0;
  if (words >> number) return number;
  return Error(ErrorCode::INVALID_PARAMS, "a number is missing in '{}'", words.str());
}

Result<std::string> Word(std::istringstream& words) {
  std::string word;
  if (words >> word) return word == "-" ? "" : word;
  return Error(ErrorCode::INVALID_PARAMS, "a word is missing in '{}'", words.str());
}

// "" is success without words.
Result<std::string> Done(Result<void> result) {
  if (!result) return std::unexpected(result.error());
  return std::string();
}

Result<void> SetOption(TransferEngineOptions& options, const std::string& key, const std::string& value) {
  if (key == "force_tcp") {
    options.force_tcp = value == "1";
  } else if (key == "same_host") {
    options.same_host = value == "1";
  } else if (key == "strict") {
    options.strict_protocol = value == "1";
  } else if (key == "port") {
    options.control_port = static_cast<uint16_t>(std::stoul(value));
  } else if (key == "timeout_ms") {
    options.default_timeout = milliseconds(std::stoul(value));
  } else if (key == "protocols") {
    options.protocols = SplitCommas(value);
  } else if (key == "devices") {
    options.device_filter = SplitCommas(value);
  } else {
    return Error(ErrorCode::INVALID_PARAMS, "no option '{}'", key);
  }
  return {};
}

}  // namespace

EngineShell::~EngineShell() {
  own_.reset();
  for (const auto& [address, block] : npu_blocks_) (void)npu_->Free(block);
  for (const auto& [address, mapping] : mappings_) {
    MC_CHECK(munmap(reinterpret_cast<void*>(address), mapping.length) == 0, "munmap {:#x}", address);
    if (mapping.memfd >= 0) close(mapping.memfd);
  }
}

std::string EngineShell::Execute(const std::string& line) {
  Words words(line);
  std::string command;
  words >> command;
  const Answer answer = Run(command, words);
  std::string text = answer ? "ok" + (answer->empty() ? "" : " " + *answer)
                            : fmt::format("error {} {}", ToInt(answer.error().code()), answer.error().message());
  std::ranges::replace(text, '\n', ' ');
  return text;
}

Result<std::string> ParseAnswer(const std::string& line) {
  if (line == "ok") return std::string();
  if (line.starts_with("ok ")) return line.substr(3);
  std::istringstream words(line);
  std::string error;
  int code = 0;
  std::string message;
  if (words >> error >> code && error == "error" && std::getline(words, message)) {
    return std::unexpected(Status(static_cast<ErrorCode>(code), "far end:" + message));
  }
  return Error(ErrorCode::INTERNAL_ERROR, "unreadable answer '{}'", line);
}

EngineShell::Answer EngineShell::Run(const std::string& command, Words& words) {
  if (command == "ping") return std::string();
  if (command == "open") return Open(words);
  if (command == "map") return Map(words);
  if (command == "map_npu") return MapNpu(words);
  if (command == "fill" || command == "check" || command == "hash") {
    const uint64_t address = MC_TRY(Number(words));
    const MemoryRange memory = Memory(address, MC_TRY(Number(words)));
    if (command == "hash") {
      const auto* const host = std::get_if<HostRange>(&memory);
      return std::to_string(host != nullptr ? HashOf(*host) : HashOf(MC_TRY(Copied(memory))));
    }
    const uint64_t seed = MC_TRY(Number(words));
    const uint64_t position = MC_TRY(Number(words));
    if (command == "check") return Done(CheckMemory(memory, seed, position));
    return Done(FillMemory(memory, seed, position));
  }
  if (engine_ == nullptr) return Error(ErrorCode::INVALID_PARAMS, "'{}' without an engine", command);
  return RunWithEngine(command, words);
}

EngineShell::Answer EngineShell::RunWithEngine(const std::string& command, Words& words) {
  if (command == "close") {
    engine_ = nullptr;
    own_.reset();
    return std::string();
  }
  if (command == "allocate") {
    const uint64_t length = MC_TRY(Number(words));
    return std::to_string(reinterpret_cast<uint64_t>(MC_TRY(engine_->AllocateMemory(length))));
  }
  if (command == "free") return Done(engine_->FreeMemory(reinterpret_cast<void*>(MC_TRY(Number(words)))));
  if (command == "register") return Register(words);
  if (command == "unregister") return Done(engine_->UnregisterMemory(reinterpret_cast<void*>(MC_TRY(Number(words)))));
  if (command == "grant") {
    const uint64_t address = MC_TRY(Number(words));
    const uint64_t length = MC_TRY(Number(words));
    const bool writable = MC_TRY(Number(words)) != 0;
    return std::to_string(MC_TRY(engine_->regions().Grant(address, length, writable, nullptr)));
  }
  if (command == "transfer") return Transfer(words);
  if (command == "await_notify") return AwaitNotify(words);
  return Error(ErrorCode::INVALID_PARAMS, "no command '{}'", command);
}

EngineShell::Answer EngineShell::Open(Words& words) {
  TransferEngineOptions options;
  options.local_name = "127.0.0.1";
  for (std::string pair; words >> pair;) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos) return Error(ErrorCode::INVALID_PARAMS, "'{}' is no option", pair);
    MC_TRY(SetOption(options, pair.substr(0, equals), pair.substr(equals + 1)));
  }
  own_ = MC_TRY(TransferEngine::Open(std::move(options)));
  engine_ = own_.get();
  const SegmentDescriptor self = engine_->Describe();
  return fmt::format("{} {} {} {}", engine_->local_name(), engine_->control_port(), self.tcp_data.port,
                     self.shm_socket.empty() ? "-" : self.shm_socket);
}

EngineShell::Answer EngineShell::Map(Words& words) {
  Mapping mapping{.length = MC_TRY(Number(words))};
  const uint64_t wanted = MC_TRY(Number(words));
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (MC_TRY(Number(words)) != 0) {
    mapping.memfd = memfd_create("far_end", MFD_CLOEXEC);
    if (mapping.memfd < 0 || ftruncate(mapping.memfd, static_cast<off_t>(mapping.length)) != 0) {
      return Error(ErrorCode::INTERNAL_ERROR, "memfd: {}", std::strerror(errno));
    }
    flags = MAP_SHARED;
  }
  if (wanted != 0) flags |= MAP_FIXED_NOREPLACE;
  void* const at =
      mmap(reinterpret_cast<void*>(wanted), mapping.length, PROT_READ | PROT_WRITE, flags, mapping.memfd, 0);
  if (at == MAP_FAILED) return Error(ErrorCode::INTERNAL_ERROR, "mmap: {}", std::strerror(errno));
  const auto address = reinterpret_cast<uint64_t>(at);
  mappings_.emplace(address, mapping);
  return std::to_string(address);
}

EngineShell::Answer EngineShell::MapNpu(Words& words) {
  const uint64_t length = MC_TRY(Number(words));
  if (npu_ == nullptr) npu_ = MC_TRY(OpenNpuRuntime());
  const int32_t device = static_cast<int32_t>(npu_blocks_.size()) % npu_->DeviceCount();
  MC_TRY(npu_->OpenDevice(device));
  const AscendUnifiedPointer block = MC_TRY(npu_->Allocate(device, length));
  const auto address = static_cast<uint64_t>(block.device_ptr);
  npu_blocks_.emplace(address, block);
  return std::to_string(address);
}

MemoryRange EngineShell::Memory(uint64_t address, uint64_t length) const {
  if (npu_ != nullptr) {
    const auto* const at = reinterpret_cast<const void*>(address);
    if (const auto device = npu_->DeviceOf(at); device && *device >= 0) {
      return NpuRange{{*device, static_cast<DeviceAddress>(address)}, length, npu_.get()};
    }
  }
  return HostRange(reinterpret_cast<std::byte*>(address), length);
}

EngineShell::Answer EngineShell::Register(Words& words) {
  const uint64_t address = MC_TRY(Number(words));
  const uint64_t length = MC_TRY(Number(words));
  RegionOptions options;
  auto mapping = mappings_.upper_bound(address);
  if (mapping != mappings_.begin() && (--mapping)->second.memfd >= 0) {
    options.shared = SharedMemory{mapping->second.memfd, address - mapping->first};
  }
  return Done(engine_->RegisterMemory(reinterpret_cast<void*>(address), length, std::move(options)));
}

EngineShell::Answer EngineShell::Transfer(Words& words) {
  const bool write = MC_TRY(Word(words)) == "write";
  TransferRequest request{.opcode = write ? TransferOpcode::kWrite : TransferOpcode::kRead};
  const std::string segment = MC_TRY(Word(words));
  request.target = MC_TRY(engine_->OpenSegment(segment));
  request.local = reinterpret_cast<void*>(MC_TRY(Number(words)));
  request.target_address = MC_TRY(Number(words));
  request.length = MC_TRY(Number(words));
  const Deadline deadline = Deadline::After(milliseconds(MC_TRY(Number(words))));
  return Done(engine_->Transfer({&request, 1}, deadline));
}

EngineShell::Answer EngineShell::AwaitNotify(Words& words) {
  const std::string message = MC_TRY(Word(words));
  const Deadline deadline = Deadline::After(milliseconds(MC_TRY(Number(words))));
  const uint64_t address = MC_TRY(Number(words));
  const MemoryRange memory = Memory(address, MC_TRY(Number(words)));
  const uint64_t seed = MC_TRY(Number(words));
  const uint64_t position = MC_TRY(Number(words));
  while (!deadline.Passed()) {
    for (const TransferNotify& notify : engine_->GetNotifies()) {
      if (notify.message != message) continue;
      MC_TRY(CheckMemory(memory, seed, position));
      return notify.name.empty() ? "-" : notify.name;
    }
    std::this_thread::sleep_for(milliseconds(1));  // the engine offers nothing to wait on
  }
  return Error(ErrorCode::TRANSFER_TIMEOUT, "no notify '{}'", message);
}

}  // namespace mooncake::transfer_test
