// `failback-registry backup|restore|check`: what an operator does to the store's file.

#ifndef FAILBACK_REGISTRY_STORE_COMMANDS_H_
#define FAILBACK_REGISTRY_STORE_COMMANDS_H_

#include <optional>

namespace failback {

// For `failback-registry --help`.
extern const char kStoreCommandsHelp[];

// Runs the command named by argv[1], and returns its exit status: 0 done, 1 failed or the store is
// damaged, 2 bad input (flags, no such file, not a store, in use). nullopt when argv[1] names none.
std::optional<int> RunStoreCommand(int argc, const char* const* argv);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_COMMANDS_H_
