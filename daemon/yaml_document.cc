#include "daemon/yaml_document.h"

#include <yaml.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace failback {
namespace {

// No file that is meant has lists and maps so deep within one another, and libyaml's time grows
// with the square of the depth.
constexpr int kMaxDepth = 100;

// libyaml's parser, freed at the end.
class Parser {
 public:
  explicit Parser(const std::string& text) {
    // Fails without memory only, like every allocation here.
    if (yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
  }
  ~Parser() { yaml_parser_delete(&parser_); }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  bool Load(yaml_document_t* document) { return yaml_parser_load(&parser_, document) != 0; }

  // Reads all of the text; the line of the first list or map that is too deep, or 0. After an error
  // in the text, which Load finds again, it is 0 too.
  size_t LineOfExcess() {
    bool at_end = false;
    for (int depth = 0; !at_end && depth <= kMaxDepth;) {
      yaml_event_t event;
      if (yaml_parser_parse(&parser_, &event) == 0) return 0;
      const bool begins =
          event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
      const bool ends =
          event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
      depth += int{begins} - int{ends};
      at_end = event.type == YAML_STREAM_END_EVENT;
      const size_t line = event.start_mark.line + 1;
      yaml_event_delete(&event);
      if (depth > kMaxDepth) return line;
    }
    return 0;
  }

  // After Load has failed.
  absl::Status Error(const std::string& name, const std::string& text) const {
    if (parser_.error == YAML_MEMORY_ERROR) throw std::bad_alloc();
    // libyaml puts the end of a text into a line of its own.
    const auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
    size_t line = std::min(parser_.problem_mark.line, lines);
    if (parser_.error == YAML_READER_ERROR) {  // knows how many bytes, and no line
      const size_t end = std::min(parser_.problem_offset, text.size());
      line = static_cast<size_t>(std::count(text.begin(), text.begin() + end, '\n'));
    }
    return absl::InvalidArgumentError(absl::StrReplaceAll(
        absl::StrCat(name, ":", line + 1, ": not YAML: ",
                     parser_.problem == nullptr ? "cannot be read" : parser_.problem),
        {{"\n", "\\n"}, {"\r", "\\r"}}));
  }

 private:
  yaml_parser_t parser_;
};

std::string_view TextOf(const yaml_node_s& node) {
  return {reinterpret_cast<const char*>(node.data.scalar.value), node.data.scalar.length};
}

bool IsNothing(const yaml_node_s& node) {
  if (node.type != YAML_SCALAR_NODE || node.data.scalar.style != YAML_PLAIN_SCALAR_STYLE) {
    return false;
  }
  const std::string_view text = TextOf(node);
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

// The next step of a path, which it takes away: a name, `[2]` or `["a"]`, without its signs.
std::string NextStep(std::string_view* path) {
  size_t begin = 0;
  size_t end = 0;
  size_t rest = 0;
  if ((*path)[0] != '[') {
    begin = (*path)[0] == '.' ? 1 : 0;
    end = rest = std::min(path->find_first_of(".[", begin), path->size());
  } else {
    const bool quoted = path->size() > 1 && (*path)[1] == '"';
    begin = quoted ? 2 : 1;
    end = std::min(path->find(quoted ? "\"]" : "]", begin), path->size());
    rest = std::min(end + begin, path->size());
  }
  std::string step(path->substr(begin, end - begin));
  path->remove_prefix(rest);
  return step;
}

}  // namespace

YamlNode YamlNode::At(int index) const {
  return YamlNode(document_, yaml_document_get_node(document_, index));
}

bool YamlNode::is_nothing() const { return node_ == nullptr || IsNothing(*node_); }
bool YamlNode::is_text() const {
  return node_ != nullptr && node_->type == YAML_SCALAR_NODE && !IsNothing(*node_);
}
bool YamlNode::is_list() const { return node_ != nullptr && node_->type == YAML_SEQUENCE_NODE; }
bool YamlNode::is_map() const { return node_ != nullptr && node_->type == YAML_MAPPING_NODE; }

int YamlNode::line() const {
  return node_ == nullptr ? 1 : static_cast<int>(node_->start_mark.line) + 1;
}

std::string YamlNode::text() const { return std::string(TextOf(*node_)); }

size_t YamlNode::size() const {
  const auto& data = node_->data;
  return is_list() ? data.sequence.items.top - data.sequence.items.start
                   : data.mapping.pairs.top - data.mapping.pairs.start;
}

YamlNode YamlNode::item(size_t index) const { return At(node_->data.sequence.items.start[index]); }

YamlNode YamlNode::key(size_t index) const {
  return At(node_->data.mapping.pairs.start[index].key);
}

YamlNode YamlNode::value(size_t index) const {
  return At(node_->data.mapping.pairs.start[index].value);
}

void YamlDocument::Deleter::operator()(yaml_document_s* document) const {
  yaml_document_delete(document);
  delete document;
}

absl::StatusOr<YamlDocument> YamlDocument::Parse(const std::string& name, const std::string& text) {
  if (const size_t line = Parser(text).LineOfExcess(); line != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ":", line, ": lists and maps are more than ", kMaxDepth, " deep"));
  }
  Parser parser(text);
  // Without a document that has been loaded there is nothing to delete in it.
  auto made = std::make_unique<yaml_document_t>();
  if (!parser.Load(made.get())) return parser.Error(name, text);
  YamlDocument document(std::unique_ptr<yaml_document_s, Deleter>(made.release()));
  if (document.root().node_ == nullptr) return document;  // the stream has ended

  made = std::make_unique<yaml_document_t>();
  if (!parser.Load(made.get())) return parser.Error(name, text);
  const YamlDocument second(std::unique_ptr<yaml_document_s, Deleter>(made.release()));
  if (second.root().node_ == nullptr) return document;
  return absl::InvalidArgumentError(
      absl::StrCat(name, ":", second.root().line(), ": a second document; one is allowed"));
}

YamlNode YamlDocument::root() const {
  return YamlNode(document_.get(), yaml_document_get_root_node(document_.get()));
}

YamlNode YamlDocument::Nearest(const std::string& path) const {
  YamlNode place = root();
  YamlNode inside = place;
  for (std::string_view left = path; !left.empty();) {
    const std::string step = NextStep(&left);
    size_t index = 0;
    if (inside.is_list()) {
      if (!absl::SimpleAtoi(step, &index) || index >= inside.size()) return place;
      place = inside = inside.item(index);
    } else if (inside.is_map()) {
      const auto is_step = [&](size_t i) {
        return inside.key(i).is_text() && inside.key(i).text() == step;
      };
      while (index < inside.size() && !is_step(index)) ++index;
      if (index == inside.size()) return place;
      place = inside.key(index);
      inside = inside.value(index);
    } else {
      return place;
    }
  }
  return place;
}

}  // namespace failback
