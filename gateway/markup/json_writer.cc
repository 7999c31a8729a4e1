#include "gateway/markup/json_writer.h"

namespace failback::markup {

JsonWriter& JsonWriter::String(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  Separate();
  out_.push_back('"');
  size_t plain = 0;  // where what is not copied yet begins
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7f && byte != '<') continue;
    out_.append(text.substr(plain, at - plain));
    plain = at + 1;
    if (byte == '"' || byte == '\\') {
      out_.push_back('\\');
      out_.push_back(static_cast<char>(byte));
    } else {
      out_.append("\\u00");
      out_.push_back(kHex[byte >> 4]);
      out_.push_back(kHex[byte & 15]);
    }
  }
  out_.append(text.substr(plain));
  out_.push_back('"');
  return *this;
}

}  // namespace failback::markup
