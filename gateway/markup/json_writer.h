// Writes JSON into a string, as foreign APIs have it: with names and numbers that no message of
// ours gives.
//
// Example:
//
//   JsonWriter json;
//   json.BeginObject();
//   json.Key("Port").Number(8080);
//   json.Key("Tags").BeginArray().String("canary").EndArray();
//   json.EndObject();
//   Send(std::move(json).Take());                       // {"Port":8080,"Tags":["canary"]}
//
// Text that is not UTF-8 is written as it is: instances have none. Characters that end a script or
// are none of JSON are escaped.
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_GATEWAY_MARKUP_JSON_WRITER_H_
#define FAILBACK_GATEWAY_MARKUP_JSON_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace failback::markup {

class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }

  JsonWriter& Key(std::string_view name) {
    String(name);
    out_.push_back(':');
    first_ = true;  // what follows is the value, without a comma
    return *this;
  }
  JsonWriter& String(std::string_view text);
  JsonWriter& Number(int64_t number) { return Raw(std::to_string(number)); }
  JsonWriter& Bool(bool value) { return Raw(value ? "true" : "false"); }
  JsonWriter& Null() { return Raw("null"); }
  // A value that is JSON already.
  JsonWriter& Raw(std::string_view json) {
    Separate();
    out_.append(json);
    return *this;
  }

  size_t size() const { return out_.size(); }
  std::string Take() && { return std::move(out_); }

 private:
  JsonWriter& Open(char bracket) {
    Separate();
    out_.push_back(bracket);
    first_ = true;
    return *this;
  }
  JsonWriter& Close(char bracket) {
    out_.push_back(bracket);
    first_ = false;
    return *this;
  }
  void Separate() {
    if (!std::exchange(first_, false)) out_.push_back(',');
  }

  std::string out_;
  bool first_ = true;  // no comma before what comes next
};

}  // namespace failback::markup

#endif  // FAILBACK_GATEWAY_MARKUP_JSON_WRITER_H_
