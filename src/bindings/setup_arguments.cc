// Binding of set-up arguments.
#include "bindings/setup_arguments.h"

#include <charconv>
#include <cmath>

#include "bindings/convert.h"
#include "common/byte_size.h"
#include "common/check.h"
#include "common/json_text.h"

namespace mooncake::python {
namespace {

using Type = SetupParameter::Type;

constexpr double kLongestSeconds = 7 * 24 * 3600.0;

const char* PythonType(Type type) {
  switch (type) {
    case Type::kText:
      return "str";
    case Type::kNumber:
    case Type::kSize:
      return "int";
    case Type::kFlag:
      return "bool";
    case Type::kSeconds:
      return "float";
    case Type::kObject:
      return "object";
  }
  return "object";
}

std::string DefaultText(const SetupParameter& parameter) {
  return parameter.type == Type::kText ? "'" + std::string(parameter.default_value) + "'" : parameter.default_value;
}

Result<bool> FlagFromText(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* yes : {"1", "true", "yes", "on", "enable"}) {
    if (lower == yes) return true;
  }
  for (const char* no : {"0", "false", "no", "off", "disable"}) {
    if (lower == no) return false;
  }
  return Error(ErrorCode::INVALID_PARAMS, "write true or false");
}

template <typename Number>
Result<Number> NumberFromText(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < Number{})
    return Error(ErrorCode::INVALID_PARAMS, "write a number from 0");
  return value;
}

}  // namespace

size_t SetupArguments::IndexOf(std::string_view name) const {
  for (size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].name == name) return i;
  }
  MC_CHECK(false, "{}() has no parameter {}", call_, name);
  return 0;
}

size_t SetupArguments::Find(py::handle keyword) const {
  const std::string name = py::str(keyword);
  for (size_t i = 0; i < table_.size(); ++i) {
    if (name == table_[i].name || (table_[i].other_name != nullptr && name == table_[i].other_name)) return i;
  }
  // Only this name stands in the text: programs drop the keyword they find here and call again.
  throw py::type_error(fmt::format("{}() got an unexpected keyword argument '{}'", call_, name));
}

void SetupArguments::SetDefaults() {
  values_.assign(table_.size(), {});
  given_.assign(table_.size(), false);
  for (size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].type == Type::kObject) continue;
    auto value = FromText(table_[i], table_[i].default_value);
    MC_CHECK(value.has_value(), "default of {}", table_[i].name);
    values_[i] = std::move(*value);
  }
}

Result<void> SetupArguments::Read(const py::args& args, const py::kwargs& kwargs) {
  SetDefaults();
  if (args.size() == 1 && kwargs.empty() && py::isinstance<py::dict>(args[0])) return ReadDict(args[0]);
  if (args.empty() && kwargs.size() == 1 && kwargs.contains("config")) {
    const py::object config = kwargs["config"];
    if (!py::isinstance<py::dict>(config)) RaiseWrongType("config", "a dict", config);
    return ReadDict(config);
  }
  ReadKeywords(args, kwargs);
  return {};
}

void SetupArguments::ReadKeywords(const py::args& args, const py::kwargs& kwargs) {
  size_t positions = 0;
  while (positions < table_.size() && !table_[positions].keyword_only) ++positions;
  if (args.size() > positions) {
    throw py::type_error(
        fmt::format("{}() takes at most {} positional arguments ({} given)", call_, positions, args.size()));
  }
  for (size_t i = 0; i < args.size(); ++i) Set(i, args[i]);
  for (const auto& [keyword, value] : kwargs) Set(Find(keyword), value);
  for (size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].required && !given_[i])
      throw py::type_error(fmt::format("{}() missing required argument '{}'", call_, table_[i].name));
  }
}

void SetupArguments::Set(size_t index, py::handle object) {
  if (given_[index])
    throw py::type_error(fmt::format("{}() got multiple values for argument '{}'", call_, table_[index].name));
  values_[index] = Convert(table_[index], object);
  given_[index] = true;
}

Result<void> SetupArguments::ReadDict(const py::dict& config) {
  for (const auto& [key, object] : config) {
    const size_t index = Find(key);
    if (object.is_none()) continue;
    const Type type = table_[index].type;
    if (type == Type::kText || type == Type::kObject || !PyUnicode_Check(object.ptr())) {
      Set(index, object);
      continue;
    }
    auto value = FromText(table_[index], std::string(py::str(object)));
    if (!value) {
      return Error(ErrorCode::INVALID_PARAMS, "{} {}: {}", table_[index].name,
                   QuoteForMessage(std::string(py::str(object))), value.error().message());
    }
    values_[index] = std::move(*value);
    given_[index] = true;
  }
  for (size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].required_in_dict && !given_[i])
      return Error(ErrorCode::INVALID_PARAMS, "the configuration lacks '{}'", table_[i].name);
  }
  return {};
}

SetupArguments::Value SetupArguments::Convert(const SetupParameter& parameter, py::handle object) const {
  PyObject* const raw = object.ptr();
  switch (parameter.type) {
    case Type::kText:
      if (!PyUnicode_Check(raw)) RaiseWrongType(parameter.name, "a str", object);
      return std::string(KeyOf(object));
    case Type::kNumber:
    case Type::kSize:
      return UnsignedOf(object, parameter.name);
    case Type::kFlag:
      if (!PyLong_Check(raw)) RaiseWrongType(parameter.name, "a bool", object);
      return PyObject_IsTrue(raw) == 1;
    case Type::kSeconds: {
      if (!PyFloat_Check(raw) && !PyLong_Check(raw)) RaiseWrongType(parameter.name, "a float", object);
      const double seconds = PyFloat_AsDouble(raw);
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
      return std::isnan(seconds) ? 0.0 : std::clamp(seconds, 0.0, kLongestSeconds);
    }
    case Type::kObject:
      // Only whether there is one matters so far.
      return object.is_none() ? Value() : Value(true);
  }
  return {};
}

Result<SetupArguments::Value> SetupArguments::FromText(const SetupParameter& parameter, std::string_view text) {
  switch (parameter.type) {
    case Type::kText:
      return Value(std::string(text));
    case Type::kNumber:
      return Value(MC_TRY(NumberFromText<uint64_t>(text)));
    case Type::kSize:
      return Value(MC_TRY(ParseByteSize(text)));
    case Type::kFlag:
      return Value(MC_TRY(FlagFromText(text)));
    case Type::kSeconds:
      return Value(std::clamp(MC_TRY(NumberFromText<double>(text)), 0.0, kLongestSeconds));
    case Type::kObject:
      return Value(true);
  }
  return Value();
}

Result<uint64_t> SetupArguments::NumberWithin(std::string_view name, uint64_t least, uint64_t most) const {
  const uint64_t value = Number(name);
  if (value < least || value > most)
    return Error(ErrorCode::INVALID_PARAMS, "{} {}: write a number from {} to {}", name, value, least, most);
  return value;
}

bool SetupArguments::Changed(size_t index) const {
  if (!given_[index]) return false;
  if (table_[index].type == Type::kObject) return values_[index].index() != 0;
  return values_[index] != *FromText(table_[index], table_[index].default_value);
}

Result<void> SetupArguments::CheckBuilt() const {
  for (size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].role == SetupParameter::Role::kUnbuilt && Changed(i))
      return Error(ErrorCode::NOT_IMPLEMENTED, "{} is not built yet: leave it at {}", table_[i].name,
                   DefaultText(table_[i]));
  }
  return {};
}

std::string SetupArguments::ChangedIdle() const {
  std::string names;
  for (size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].role == SetupParameter::Role::kIdle && Changed(i))
      names += (names.empty() ? "" : ", ") + std::string(table_[i].name);
  }
  return names;
}

std::string SetupArguments::Document(const char* call, std::span<const SetupParameter> table, const char* text) {
  std::string signature = std::string(call) + "(";
  std::string lines;
  bool keyword_only = false;
  for (const SetupParameter& parameter : table) {
    if (&parameter != &table[0]) signature += ", ";
    if (parameter.keyword_only && !std::exchange(keyword_only, true)) signature += "*, ";
    signature += fmt::format("{}: {}", parameter.name, PythonType(parameter.type));
    if (!parameter.required) signature += " = " + DefaultText(parameter);
    lines += fmt::format("    {}{}{}: {}\n", parameter.name, parameter.other_name != nullptr ? " or " : "",
                         parameter.other_name != nullptr ? parameter.other_name : "", parameter.meaning);
  }
  return fmt::format("{}) -> int\n{}(config: dict) -> int\n\n{}\n\n{}", signature, call, text, lines);
}

}  // namespace mooncake::python
