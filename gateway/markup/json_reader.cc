#include "gateway/markup/json_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "registry/base/utf8.h"
#include "registry/model/errors.h"

namespace failback::markup {
namespace {

// Of what the parser says about text that is no JSON.
constexpr size_t kMostErrorBytes = 200;

// The events by the names that the parser calls them.
class Events {
 public:
  explicit Events(JsonListener* listener) : listener_(listener) {}

  bool null() { return listener_->Scalar(nullptr); }
  bool boolean(bool value) { return listener_->Scalar(value); }
  bool number_integer(int64_t value) { return listener_->Scalar(value); }
  bool number_unsigned(uint64_t value) { return listener_->Scalar(value); }
  bool number_float(double value, const std::string& /*text*/) { return listener_->Scalar(value); }
  bool string(std::string& value) { return listener_->Scalar(std::move(value)); }
  bool binary(nlohmann::json::binary_t& /*value*/) { return false; }  // JSON has none
  bool start_object(size_t /*size*/) { return listener_->BeginObject(); }
  bool key(std::string& name) { return listener_->Name(std::move(name)); }
  bool end_object() { return listener_->EndObject(); }
  bool start_array(size_t /*size*/) { return listener_->BeginList(); }
  bool end_array() { return listener_->EndList(); }

  bool parse_error(size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: …", with some of the text.
    std::string what = error.what();
    if (const size_t end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
    what = MadeUtf8(std::move(what));
    CutUtf8(kMostErrorBytes, &what);
    syntax_ = InvalidField("body",
                           absl::StrCat("is no valid JSON: ", MadePrintable(std::move(what), '?')));
    return false;
  }

  const absl::Status& error() const { return syntax_.ok() ? listener_->error() : syntax_; }

 private:
  JsonListener* const listener_;
  absl::Status syntax_;
};

}  // namespace

absl::Status ReadJson(std::string_view text, JsonListener* listener) {
  if (text.empty()) return InvalidField("body", "is empty; JSON is expected");
  Events events(listener);
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &events)) return absl::OkStatus();
  return events.error();
}

}  // namespace failback::markup
