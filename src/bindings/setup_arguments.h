// Arguments of the set-up calls: one table per call binds positions, keywords and a dict, and writes the doc string.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/status.h"

namespace mooncake::python {

struct SetupParameter {
  enum class Type : uint8_t { kText, kNumber, kSize, kFlag, kSeconds, kObject };
  enum class Role : uint8_t {
    kUsed,
    kIdle,     // any value is accepted; one that is not the default is named at start
    kUnbuilt,  // a value that is not the default is an error
  };

  const char* name;
  const char* other_name;  // second spelling, or nullptr
  Type type;
  const char* default_value;  // as Python prints it; "None" for kObject
  Role role;
  const char* meaning;
  bool required = false;          // as an argument
  bool required_in_dict = false;  // in the dict form
  bool keyword_only = false;
};

// Name, positions and keywords are those of Python; wrong ones are TypeErrors that name the keyword.
class SetupArguments {
 public:
  SetupArguments(const char* call, std::span<const SetupParameter> table) : call_(call), table_(table) {}

  // Reads either the arguments themselves or one dict (positional or as `config`), where numbers and flags may be text
  // ("16MB", "yes") and None stands for the default. TypeError for unknown names, wrong types, missing arguments;
  // INVALID_PARAMS for text of a dict that says no such value, and for keys it lacks.
  Result<void> Read(const pybind11::args& args, const pybind11::kwargs& kwargs);

  bool Given(std::string_view name) const { return given_[IndexOf(name)]; }
  const std::string& Text(std::string_view name) const { return std::get<std::string>(values_[IndexOf(name)]); }
  bool Flag(std::string_view name) const { return std::get<bool>(values_[IndexOf(name)]); }
  double Seconds(std::string_view name) const { return std::get<double>(values_[IndexOf(name)]); }
  uint64_t Number(std::string_view name) const { return std::get<uint64_t>(values_[IndexOf(name)]); }
  // INVALID_PARAMS unless within [least, most].
  Result<uint64_t> NumberWithin(std::string_view name, uint64_t least, uint64_t most) const;

  // NOT_IMPLEMENTED naming the first kUnbuilt parameter that was changed.
  Result<void> CheckBuilt() const;
  // kIdle parameters that were changed, "a, b".
  std::string ChangedIdle() const;

  // "setup(local_hostname: str, ..., wait: float = 5.0) -> int" and a line for each parameter.
  static std::string Document(const char* call, std::span<const SetupParameter> table, const char* text);

 private:
  using Value = std::variant<std::monostate, std::string, uint64_t, bool, double>;

  size_t IndexOf(std::string_view name) const;
  // Position of a keyword, or TypeError.
  size_t Find(pybind11::handle keyword) const;
  void SetDefaults();
  Result<void> ReadDict(const pybind11::dict& config);
  void ReadKeywords(const pybind11::args& args, const pybind11::kwargs& kwargs);
  void Set(size_t index, pybind11::handle object);
  Value Convert(const SetupParameter& parameter, pybind11::handle object) const;
  static Result<Value> FromText(const SetupParameter& parameter, std::string_view text);
  bool Changed(size_t index) const;

  const char* const call_;
  const std::span<const SetupParameter> table_;
  std::vector<Value> values_;
  std::vector<bool> given_;
};

}  // namespace mooncake::python
