#include "gateway/markup/xml_writer.h"

#include <algorithm>
#include <cstddef>

namespace failback::markup {
namespace {

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

void AppendText(std::string_view text, std::string* out) {
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    // U+FFFE and U+FFFF.
    if (text.substr(at, 3) == "\xEF\xBF\xBE" || text.substr(at, 3) == "\xEF\xBF\xBF") {
      at += 2;
      continue;
    }
    switch (c) {
      case '&':
        out->append("&amp;");
        break;
      case '<':
        out->append("&lt;");
        break;
      case '>':
        out->append("&gt;");
        break;
      case '"':
        out->append("&quot;");
        break;
      case '\t':
      case '\n':
      case '\r':
        // Readers would make one space of it in an attribute.
        out->append(c == '\t' ? "&#9;" : c == '\n' ? "&#10;" : "&#13;");
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) out->push_back(c);
    }
  }
}

}  // namespace

XmlWriter& XmlWriter::Open(std::string_view name, Attributes attributes) {
  out_.push_back('<');
  out_.append(name);
  for (const auto& [attribute, value] : attributes) {
    out_.push_back(' ');
    out_.append(attribute);
    out_.append("=\"");
    AppendText(value, &out_);
    out_.push_back('"');
  }
  out_.push_back('>');
  return *this;
}

XmlWriter& XmlWriter::Close(std::string_view name) {
  out_.append("</");
  out_.append(name);
  out_.push_back('>');
  return *this;
}

XmlWriter& XmlWriter::Text(std::string_view text) {
  AppendText(text, &out_);
  return *this;
}

bool IsXmlName(std::string_view name) {
  return !name.empty() && IsLetter(name.front()) &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return IsLetter(c) || (c >= '0' && c <= '9') || c == '-' || c == '.';
         });
}

}  // namespace failback::markup
