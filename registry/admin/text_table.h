// Messages of the admin API as tables, for people with a terminal and curl. Pure.

#ifndef FAILBACK_REGISTRY_ADMIN_TEXT_TABLE_H_
#define FAILBACK_REGISTRY_ADMIN_TEXT_TABLE_H_

#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace failback {

// Columns as wide as their widest cell; the first row is the head. Control characters become `?`.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

// Lists as tables, anything else in protobuf's text format.
std::string MessageText(const google::protobuf::Message& message);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_ADMIN_TEXT_TABLE_H_
