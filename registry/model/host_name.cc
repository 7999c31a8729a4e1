#include "registry/model/host_name.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"

namespace failback {

absl::Status ValidateHostName(const FieldPath& path, std::string_view address) {
  if (address.find(':') != std::string_view::npos) return absl::OkStatus();  // IPv6
  std::string_view rest = address;
  // The root, as in `example.com.`
  if (rest.size() > 1 && rest.back() == '.') rest.remove_suffix(1);
  while (true) {
    const size_t size = std::min(rest.find('.'), rest.size());
    if (size == 0 || size > kMaxHostLabel) {
      return InvalidField(path.ToString(),
                          absl::StrCat(Quoted(address),
                                       " is neither a host name nor an IP address: each part of a "
                                       "name, between its dots, has 1 to ",
                                       kMaxHostLabel, " characters"));
    }
    if (size == rest.size()) return absl::OkStatus();
    rest.remove_prefix(size + 1);
  }
}

}  // namespace failback
