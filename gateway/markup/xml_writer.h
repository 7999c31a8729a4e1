// Writes XML into a string: elements, attributes, text.
//
// Example:
//
//   XmlWriter xml;
//   xml.Open("port", {{"enabled", "true"}}).Text("8080").Close("port");
//   Send(std::move(xml).Take());                       // <port enabled="true">8080</port>
//
// Names are the caller's, and are written as they are. Characters that XML cannot have are left out
// of texts.
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_GATEWAY_MARKUP_XML_WRITER_H_
#define FAILBACK_GATEWAY_MARKUP_XML_WRITER_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace failback::markup {

class XmlWriter {
 public:
  using Attributes = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  XmlWriter& Open(std::string_view name, Attributes attributes = {});
  XmlWriter& Close(std::string_view name);
  XmlWriter& Text(std::string_view text);
  // An element with nothing but text.
  XmlWriter& Element(std::string_view name, std::string_view text) {
    return Open(name).Text(text).Close(name);
  }
  // Elements that are XML already.
  XmlWriter& Raw(std::string_view xml) {
    out_.append(xml);
    return *this;
  }

  std::string Take() && { return std::move(out_); }

 private:
  std::string out_;
};

// Whether `name` can be the name of an element: letters, digits, `_`, `-`, `.`, and a letter or `_`
// first. XML allows more.
bool IsXmlName(std::string_view name);

}  // namespace failback::markup

#endif  // FAILBACK_GATEWAY_MARKUP_XML_WRITER_H_
