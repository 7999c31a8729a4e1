// A YAML text as a tree that remembers its lines.
//
// Choose it to read what people write: it is made in one pass (libyaml's), with one array for all
// nodes, and is gone as a whole. An alias is the node that it names. A text is one document; an
// empty one has no node but nothing.
//
//   absl::StatusOr<YamlDocument> document = YamlDocument::Parse("agent.yaml", text);
//   if (!document.ok()) return document.status();  // agent.yaml:3: not YAML: …
//   const YamlNode root = document->root();
//   for (size_t i = 0; root.is_map() && i < root.size(); ++i) Use(root.key(i), root.value(i));
//
// Thread safety: thread-compatible. A node is valid as long as its document.

#ifndef FAILBACK_DAEMON_YAML_DOCUMENT_H_
#define FAILBACK_DAEMON_YAML_DOCUMENT_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct yaml_document_s;
struct yaml_node_s;

namespace failback {

class YamlNode {
 public:
  // A plain `null`, `~`, or no text at all where a value may be.
  bool is_nothing() const;
  bool is_text() const;
  bool is_list() const;
  bool is_map() const;

  // The line that it begins in, from 1.
  int line() const;
  // Of a text.
  std::string text() const;
  // Of a list or a map: how many items or keys it has.
  size_t size() const;
  YamlNode item(size_t index) const;
  YamlNode key(size_t index) const;
  YamlNode value(size_t index) const;

  // The same node of the same document.
  friend bool operator==(const YamlNode& a, const YamlNode& b) { return a.node_ == b.node_; }

 private:
  friend class YamlDocument;
  YamlNode(yaml_document_s* document, const yaml_node_s* node) : document_(document), node_(node) {}
  YamlNode At(int index) const;

  yaml_document_s* document_;
  const yaml_node_s* node_;  // null: the whole text is empty
};

class YamlDocument {
 public:
  // INVALID_ARGUMENT, in one line, names the place in `name` and what is wrong; also of a text that
  // goes too deep, which is found before it costs time.
  static absl::StatusOr<YamlDocument> Parse(const std::string& name, const std::string& text);

  YamlNode root() const;

  // The node that a path as `services[2].metadata["a"]` leads to, or the last one on the way there
  // that exists; of a key the key itself, as its line is where the path was set.
  YamlNode Nearest(const std::string& path) const;

 private:
  struct Deleter {
    void operator()(yaml_document_s* document) const;
  };
  explicit YamlDocument(std::unique_ptr<yaml_document_s, Deleter> document)
      : document_(std::move(document)) {}

  std::unique_ptr<yaml_document_s, Deleter> document_;
};

}  // namespace failback

#endif  // FAILBACK_DAEMON_YAML_DOCUMENT_H_
