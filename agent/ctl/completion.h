// Completion of failbackctl's command line in bash, zsh and fish.
//
// The shells' scripts are thin: each hands the words typed so far to `failbackctl __complete`,
// which answers from the command line's own definition, so that the three cannot drift from it or
// from each other. The answer's first line is `values`, or `files` when the shell is to offer file
// names; every further line is a candidate, a tab, and a description.
//
// Thread safety: all functions are pure, but for what ValueSource does.

#ifndef FAILBACK_AGENT_CTL_COMPLETION_H_
#define FAILBACK_AGENT_CTL_COMPLETION_H_

#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "agent/ctl/commands.h"

namespace failback {

struct Candidate {
  std::string value;
  std::string help;
};

struct Completion {
  // File names belong here.
  bool files = false;
  std::vector<Candidate> candidates;
};

// What belongs where an option has the type name SERVICE, ID, OPERATION or UPSTREAM; empty when
// there is no target to ask. `words` are all that were typed before.
using ValueSource = std::function<std::vector<Candidate>(const std::string& type_name,
                                                         const std::vector<std::string>& words)>;

// Completes the last of `words` (which do not include the program's name; an empty last word begins
// a new one).
Completion Complete(const CLI::App& app, const std::vector<std::string>& words,
                    const ValueSource& values);

// The lines that the shells' scripts read.
std::string FormatCompletion(const Completion& completion);

// Values that the target of `context` knows: services, instances, pending operations, upstreams.
std::vector<Candidate> AskForValues(CtlContext* context, const std::string& type_name,
                                    const std::vector<std::string>& words);

// completion: prints a shell's script.
void AddCompletionCommand(CLI::App* app, CtlAction* action);

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_COMPLETION_H_
