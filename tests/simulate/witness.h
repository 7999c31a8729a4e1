// Sees what a registry answers about sessions and writes, at the moment of the answer.

#ifndef FAILBACK_TESTS_SIMULATE_WITNESS_H_
#define FAILBACK_TESTS_SIMULATE_WITNESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "registry/registry.h"

namespace failback::simulate {

class Witness {
 public:
  // What an intent was, taken from the batch before that is given to the registry.
  struct Asked {
    std::string key;
    uint64_t generation;
    bool registers;
  };

  virtual ~Witness() = default;
  virtual void Opened(const std::string& session_id, uint64_t rank) = 0;
  // The session ended in good order.
  virtual void Closed(const std::string& session_id) = 0;
  // What Written is about, if that comes: the registry may end before, or fail.
  virtual void Begun(const std::vector<Asked>&) {}
  virtual void Written(const std::string& session_id, const std::vector<Asked>& asked,
                       const BatchResult& result) = 0;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_WITNESS_H_
