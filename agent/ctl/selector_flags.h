// The flags of `list` and `subscribe` that say which instances are meant.
//
// Thread safety: none.

#ifndef FAILBACK_AGENT_CTL_SELECTOR_FLAGS_H_
#define FAILBACK_AGENT_CTL_SELECTOR_FLAGS_H_

#include <string>
#include <vector>

#include "agent/ctl/flags.h"
#include "failback/registry/v1/registry.pb.h"

namespace failback {

struct SelectorFlags {
  registry::v1::Selector selector;
  std::vector<std::string> zones;
  KeyValues metadata;
  bool healthy = false;
  std::string upstream;

  // `this` outlives the command.
  void AddTo(CLI::App* command);

  registry::v1::Selector ToProto() const;
};

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_SELECTOR_FLAGS_H_
