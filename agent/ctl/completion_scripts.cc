#include <map>
#include <memory>
#include <string>

#include "agent/ctl/completion.h"

namespace failback {
namespace {

// bash splits words at `=` and `:`; they are put together again, and what stands before the last
// split is taken off the candidates.
constexpr char kBash[] =
    R"bash(# bash completion for failbackctl; see `failbackctl completion --help`.
_failbackctl() {
  local words=() word line value last joins=""
  for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
    if [[ ${#words[@]} -gt 1 && ( $word == [=:]* || -n $joins ) ]]; then
      words[${#words[@]}-1]+=$word
    else
      words+=("$word")
    fi
    [[ $word == *[=:] ]] && joins=1 || joins=""
  done
  last=${words[${#words[@]}-1]}
  COMPREPLY=()
  while IFS= read -r line; do
    if [[ $line == files ]]; then
      compopt -o default 2>/dev/null
      return
    fi
    [[ $line == values ]] && continue
    value=${line%%$'\t'*}
    [[ $last == *[=:]* && ${COMP_WORDBREAKS} == *[=:]* ]] && value=${value#"${last%"${last##*[=:]}"}"}
    COMPREPLY+=("$(printf '%q' "$value")")
  done < <("${words[0]/#\~/$HOME}" __complete "${words[@]:1}" 2>/dev/null)
}
complete -F _failbackctl failbackctl
)bash";

constexpr char kZsh[] = R"zsh(#compdef failbackctl
# zsh completion for failbackctl; see `failbackctl completion --help`.
_failbackctl() {
  local -a lines described
  local line value
  lines=("${(@f)$("${(Q)words[1]}" __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ $lines[1] == files ]]; then
    _files
    return
  fi
  for line in "${(@)lines[2,-1]}"; do
    value=${line%%$'\t'*}
    described+=("${value//:/\\:}:${line#*$'\t'}")
  done
  _describe -t values failbackctl described
}
if [[ $funcstack[1] == _failbackctl ]]; then
  _failbackctl "$@"
else
  compdef _failbackctl failbackctl
fi
)zsh";

constexpr char kFish[] =
    R"fish(# fish completion for failbackctl; see `failbackctl completion --help`.
function __failbackctl_complete
    set -l words (commandline -opc)
    set -l lines ($words[1] __complete $words[2..-1] (commandline -ct) 2>/dev/null)
    if test "$lines[1]" = files
        __fish_complete_path (commandline -ct)
    else if test (count $lines) -gt 1
        string join \n -- $lines[2..-1]
    end
end
complete -c failbackctl -f -a '(__failbackctl_complete)'
)fish";

}  // namespace

void AddCompletionCommand(CLI::App* app, CtlAction* action) {
  auto shell = std::make_shared<std::string>();
  CLI::App* const command =
      app->add_subcommand("completion", "print what completes failbackctl in a shell");
  command->footer(
      "Commands, flags, and names that the target knows: services, instances, pending "
      "operations.\n\n"
      "Examples:\n"
      "  failbackctl completion bash > /etc/bash_completion.d/failbackctl\n"
      "  failbackctl completion zsh > \"${fpath[1]}/_failbackctl\"\n"
      "  failbackctl completion fish > ~/.config/fish/completions/failbackctl.fish\n"
      "  source <(failbackctl completion bash)");
  command->add_option("SHELL", *shell, "bash, zsh or fish")->type_name("bash|zsh|fish")->required();
  command->callback([action, shell] {
    static const std::map<std::string, const char*> kScripts = {
        {"bash", kBash}, {"zsh", kZsh}, {"fish", kFish}};
    const auto found = kScripts.find(*shell);
    if (found == kScripts.end()) {
      throw CLI::ValidationError("SHELL", "'" + *shell + "' is not bash, zsh or fish");
    }
    *action = [script = found->second](CtlContext*) {
      Print(script);
      return kCtlOk;
    };
  });
}

}  // namespace failback
