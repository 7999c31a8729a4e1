// Tables for people with a terminal: of failbackctl, and of the admin API with curl. Pure.

#ifndef FAILBACK_DAEMON_ADMIN_TEXT_TABLE_H_
#define FAILBACK_DAEMON_ADMIN_TEXT_TABLE_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace failback {

// A cell as it is to be printed, as many columns wide as before. Row 0 has the titles.
using CellPainter =
    std::function<std::string(size_t row, const std::string& title, const std::string& cell)>;

// A text as a cell: control characters show as spaces, so that a row is a line; an empty text
// shows as "-".
std::string TableCell(const std::string& text);

// Rows of at most as many cells as the header has, columns aligned with two spaces between.
std::string FormatTable(const std::vector<std::string>& header,
                        const std::vector<std::vector<std::string>>& rows,
                        const CellPainter& paint = nullptr);

// Lists as tables, anything else in protobuf's text format.
std::string MessageText(const google::protobuf::Message& message);

}  // namespace failback

#endif  // FAILBACK_DAEMON_ADMIN_TEXT_TABLE_H_
