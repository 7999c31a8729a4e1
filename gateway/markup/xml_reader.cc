#include "gateway/markup/xml_reader.h"

#include <expat.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"

namespace failback::markup {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

// Adds a child to an object; the second one of a name makes a list of both.
void AddChild(const std::string& name, Value child, Struct* object) {
  const auto it = object->mutable_fields()->find(name);
  if (it == object->mutable_fields()->end()) {
    (*object->mutable_fields())[name] = std::move(child);
    return;
  }
  Value& present = it->second;
  if (present.kind_case() != Value::kListValue) {
    Value first = std::move(present);
    present.Clear();
    *present.mutable_list_value()->add_values() = std::move(first);
  }
  *present.mutable_list_value()->add_values() = std::move(child);
}

// What expat calls back.
class Reader {
 public:
  explicit Reader(XML_Parser parser) : parser_(parser) {
    XML_SetUserData(parser, this);
    XML_SetElementHandler(parser, OnStart, OnEnd);
    XML_SetCharacterDataHandler(parser, OnText);
    XML_SetStartDoctypeDeclHandler(parser, OnDoctype);
  }

  const std::string& refusal() const { return refusal_; }
  Value Take() && {
    Value value;
    *value.mutable_struct_value() = std::move(root_);
    return value;
  }

 private:
  // An element that has begun.
  struct Element {
    std::string name;
    std::string text;
    Struct fields;  // attributes and children
  };

  static void OnStart(void* self, const XML_Char* name, const XML_Char** attributes) {
    static_cast<Reader*>(self)->Start(name, attributes);
  }
  static void OnEnd(void* self, const XML_Char*) { static_cast<Reader*>(self)->End(); }
  static void OnText(void* self, const XML_Char* text, int size) {
    static_cast<Reader*>(self)->Text({text, static_cast<size_t>(size)});
  }
  static void OnDoctype(void* self, const XML_Char*, const XML_Char*, const XML_Char*, int) {
    static_cast<Reader*>(self)->Refuse("a document type is not allowed");
  }

  void Refuse(std::string why) {
    if (!refusal_.empty()) return;
    refusal_ = std::move(why);
    XML_StopParser(parser_, XML_FALSE);
  }

  void Start(const XML_Char* name, const XML_Char** attributes) {
    if (!refusal_.empty()) return;
    if (open_.size() >= kMaxXmlDepth) {
      return Refuse(absl::StrCat("elements are nested deeper than ", kMaxXmlDepth));
    }
    ++elements_;
    open_.push_back({name, "", {}});
    for (const XML_Char** attribute = attributes; *attribute != nullptr; attribute += 2) {
      ++elements_;
      (*open_.back().fields.mutable_fields())[absl::StrCat("@", attribute[0])].set_string_value(
          attribute[1]);
    }
    if (elements_ > kMaxXmlElements) {
      Refuse(absl::StrCat("there are more than ", kMaxXmlElements, " elements and attributes"));
    }
  }

  void Text(std::string_view text) {
    if (refusal_.empty() && !open_.empty()) open_.back().text.append(text);
  }

  void End() {
    if (!refusal_.empty()) return;
    Element element = std::move(open_.back());
    open_.pop_back();
    absl::StripAsciiWhitespace(&element.text);
    Value value;
    if (element.fields.fields().empty()) {
      value.set_string_value(std::move(element.text));
    } else {
      if (!element.text.empty()) {
        (*element.fields.mutable_fields())["$"].set_string_value(std::move(element.text));
      }
      *value.mutable_struct_value() = std::move(element.fields);
    }
    AddChild(element.name, std::move(value), open_.empty() ? &root_ : &open_.back().fields);
  }

  const XML_Parser parser_;
  std::vector<Element> open_;
  Struct root_;
  int elements_ = 0;
  std::string refusal_;
};

}  // namespace

absl::StatusOr<Value> ParseXml(std::string_view text) {
  if (text.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    return InvalidField("body", "is too long");
  }
  const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser(
      XML_ParserCreate("UTF-8"), XML_ParserFree);
  if (parser == nullptr) return absl::ResourceExhaustedError("no memory");
  Reader reader(parser.get());
  if (XML_Parse(parser.get(), text.data(), static_cast<int>(text.size()), XML_TRUE) ==
      XML_STATUS_OK) {
    return std::move(reader).Take();
  }
  const std::string why =
      reader.refusal().empty() ? XML_ErrorString(XML_GetErrorCode(parser.get())) : reader.refusal();
  return InvalidField("body", absl::StrCat("is no XML that is taken: line ",
                                           XML_GetCurrentLineNumber(parser.get()), ": ", why));
}

}  // namespace failback::markup
