#include "gateway/markup/fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gateway/markup/json_reader.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback::markup {
namespace {

using google::protobuf::Value;

constexpr size_t kMostDepth = 64;

std::string Normalized(std::string_view name) {
  std::string normalized;
  for (const char c : name) {
    if (c != '_') normalized.push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
  }
  return normalized;
}

// Whether a field with this value is as good as absent.
bool SaysNothing(const Value& value) {
  switch (value.kind_case()) {
    case Value::kStringValue:
      return value.string_value().empty();
    case Value::kNumberValue:
      return value.number_value() == 0;
    case Value::kBoolValue:
      return !value.bool_value();
    case Value::kListValue:
      return value.list_value().values().empty();
    case Value::kStructValue:
      return std::all_of(value.struct_value().fields().begin(), value.struct_value().fields().end(),
                         [](const auto& field) { return SaysNothing(field.second); });
    default:
      return true;
  }
}

const char* KindOf(const Value& value) {
  switch (value.kind_case()) {
    case Value::kStringValue:
      return "a text";
    case Value::kNumberValue:
      return "a number";
    case Value::kBoolValue:
      return "a boolean";
    case Value::kListValue:
      return "a list";
    case Value::kStructValue:
      return "an object";
    default:
      return "null";
  }
}

bool IsAbsent(const Value* value) {
  return value == nullptr || value->kind_case() == Value::kNullValue ||
         value->kind_case() == Value::KIND_NOT_SET;
}

class ValueBuilder final : public JsonListener {
 public:
  const absl::Status& error() const override { return error_; }
  Value Take() && { return std::move(root_); }

  bool Scalar(JsonScalar given) override {
    Value* const value = Next();
    if (const auto* flag = std::get_if<bool>(&given)) {
      value->set_bool_value(*flag);
    } else if (const auto* negative = std::get_if<int64_t>(&given)) {
      value->set_number_value(static_cast<double>(*negative));
    } else if (const auto* positive = std::get_if<uint64_t>(&given)) {
      value->set_number_value(static_cast<double>(*positive));
    } else if (const auto* number = std::get_if<double>(&given)) {
      value->set_number_value(*number);
    } else if (auto* string = std::get_if<std::string>(&given)) {
      value->set_string_value(std::move(*string));
    } else {
      value->set_null_value(google::protobuf::NULL_VALUE);
    }
    return true;
  }
  bool BeginObject() override {
    Value* const value = Next();
    value->mutable_struct_value();
    return Enter(value);
  }
  bool Name(std::string name) override {
    const auto [it, is_new] =
        open_.back()->mutable_struct_value()->mutable_fields()->insert({name, Value()});
    member_ = &it->second;
    if (!is_new) error_ = InvalidField(Quoted(name), "is there twice");
    return is_new;
  }
  bool EndObject() override { return Leave(); }
  bool BeginList() override {
    Value* const value = Next();
    value->mutable_list_value();
    return Enter(value);
  }
  bool EndList() override { return Leave(); }

 private:
  // Where the next value goes.
  Value* Next() {
    if (open_.empty()) return &root_;
    if (open_.back()->has_list_value()) return open_.back()->mutable_list_value()->add_values();
    return member_;
  }
  bool Enter(Value* value) {
    if (open_.size() == kMostDepth) {
      error_ = InvalidField("body", absl::StrCat("is nested more than ", kMostDepth, " deep"));
      return false;
    }
    open_.push_back(value);
    return true;
  }
  bool Leave() {
    open_.pop_back();
    return true;
  }

  Value root_;
  std::vector<Value*> open_;
  Value* member_ = nullptr;  // of the object that is open
  absl::Status error_;
};

}  // namespace

absl::StatusOr<Value> ParseJson(std::string_view text) {
  ValueBuilder builder;
  if (auto status = ReadJson(text, &builder); !status.ok()) return status;
  return std::move(builder).Take();
}

std::optional<std::string> ScalarText(const Value& value) {
  switch (value.kind_case()) {
    case Value::kStringValue:
      return value.string_value();
    case Value::kBoolValue:
      return value.bool_value() ? "true" : "false";
    case Value::kNumberValue: {
      const double number = value.number_value();
      constexpr double kMostExact = 9007199254740992;  // 2^53
      if (std::floor(number) == number && std::fabs(number) <= kMostExact) {
        return absl::StrCat(static_cast<int64_t>(number));
      }
      return absl::StrCat(number);
    }
    default:
      return std::nullopt;
  }
}

absl::StatusOr<Fields> Fields::Of(std::string path, const Value& value) {
  if (value.kind_case() != Value::kStructValue) {
    return InvalidField(path.empty() ? "body" : path,
                        absl::StrCat("is ", KindOf(value), "; an object is expected"));
  }
  Fields fields(std::move(path));
  for (const auto& [name, field] : value.struct_value().fields()) {
    if (!fields.fields_.emplace(Normalized(name), Field{&name, &field}).second) {
      return InvalidField(fields.PathOf(Quoted(name)), "is there twice, in two spellings");
    }
  }
  return fields;
}

std::string Fields::PathOf(const std::string& name) const {
  return path_.empty() ? name : absl::StrCat(path_, ".", name);
}

void Fields::Fail(const std::string& name, const std::string& description) {
  if (error_.ok()) error_ = InvalidField(PathOf(name), description);
}

const Value* Fields::Any(const std::string& name) {
  asked_.push_back(name);
  const auto it = fields_.find(Normalized(name));
  if (it == fields_.end()) return nullptr;
  it->second.asked = true;
  const Value* const value = it->second.value;
  // An element of XML without anything in it is an empty text, also where an object is expected.
  const bool empty = value->kind_case() == Value::kStringValue && value->string_value().empty();
  return empty || IsAbsent(value) ? nullptr : value;
}

std::string Fields::Text(const std::string& name) {
  const Value* const value = Any(name);
  if (value == nullptr) return "";
  if (value->kind_case() == Value::kStringValue) return value->string_value();
  Fail(name, absl::StrCat("is ", KindOf(*value), "; a text is expected"));
  return "";
}

std::optional<int64_t> Fields::Integer(const std::string& name, int64_t least, int64_t most) {
  const Value* const value = Any(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::string> text = ScalarText(*value);
  int64_t number = 0;
  if (value->kind_case() == Value::kBoolValue || !text.has_value() ||
      !absl::SimpleAtoi(*text, &number)) {
    Fail(name, text.has_value()
                   ? absl::StrCat(Quoted(*text), " is no whole number")
                   : absl::StrCat("is ", KindOf(*value), "; a whole number is expected"));
    return std::nullopt;
  }
  if (number < least || number > most) {
    Fail(name, absl::StrCat(number, " is not in ", least, "..", most));
    return std::nullopt;
  }
  return number;
}

bool Fields::Flag(const std::string& name) {
  const Value* const value = Any(name);
  if (value == nullptr) return false;
  if (value->kind_case() == Value::kBoolValue) return value->bool_value();
  if (value->kind_case() == Value::kStringValue) {
    if (value->string_value() == "true") return true;
    if (value->string_value() == "false") return false;
  }
  Fail(name, absl::StrCat("is ", KindOf(*value), "; true or false is expected"));
  return false;
}

std::vector<std::string> Fields::Texts(const std::string& name) {
  std::vector<std::string> texts;
  const Value* const value = Any(name);
  if (value == nullptr) return texts;
  if (value->kind_case() != Value::kListValue) {
    Fail(name, absl::StrCat("is ", KindOf(*value), "; a list of texts is expected"));
    return texts;
  }
  for (const Value& item : value->list_value().values()) {
    if (item.kind_case() == Value::kStringValue) {
      texts.push_back(item.string_value());
    } else {
      Fail(absl::StrCat(name, "[", texts.size(), "]"),
           absl::StrCat("is ", KindOf(item), "; a text is expected"));
      break;
    }
  }
  return texts;
}

std::map<std::string, std::string> Fields::TextMap(const std::string& name) {
  std::map<std::string, std::string> map;
  const Value* const value = Any(name);
  if (value == nullptr) return map;
  if (value->kind_case() != Value::kStructValue) {
    Fail(name, absl::StrCat("is ", KindOf(*value), "; an object is expected"));
    return map;
  }
  for (const auto& [key, field] : value->struct_value().fields()) {
    if (IsAbsent(&field)) continue;
    std::optional<std::string> text = ScalarText(field);
    if (text.has_value()) {
      map.emplace(key, *std::move(text));
    } else {
      Fail(absl::StrCat(name, "[", Quoted(key), "]"),
           absl::StrCat("is ", KindOf(field), "; a text is expected"));
    }
  }
  return map;
}

absl::Status Fields::Finish() {
  if (!error_.ok()) return error_;
  const std::string* unknown = nullptr;  // the first by name, whatever the order of the table
  for (const auto& [normalized, field] : fields_) {
    if (field.asked || SaysNothing(*field.value)) continue;
    if (unknown == nullptr || *field.name < *unknown) unknown = field.name;
  }
  if (unknown == nullptr) return absl::OkStatus();
  return InvalidField(
      PathOf(*unknown).size() > kMaxQuoted ? PathOf(Quoted(*unknown)) : PathOf(*unknown),
      absl::StrCat("is not supported; allowed: ", absl::StrJoin(asked_, ", ")));
}

}  // namespace failback::markup
