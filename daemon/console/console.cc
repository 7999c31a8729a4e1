#include "daemon/console/console.h"

#include <string>
#include <string_view>
#include <utility>

namespace failback {
namespace {

struct File {
  std::string_view name;
  std::string_view tag;
  std::string_view content;
};

constexpr File kFiles[] = {
#include "daemon/console/page.inc"
};

constexpr std::string_view kPage = "index.html";

std::string ContentType(std::string_view name) {
  const std::string_view extension = name.substr(name.rfind('.') + 1);
  if (extension == "html") return "text/html; charset=utf-8";
  if (extension == "css") return "text/css; charset=utf-8";
  if (extension == "svg") return "image/svg+xml";
  return "text/javascript; charset=utf-8";
}

http::Response Respond(const File& file) {
  http::Response response;
  response.content_type = ContentType(file.name);
  response.body = file.content;
  response.etag = file.tag;
  return response;
}

}  // namespace

void HandleConsole(http::Server* server) {
  for (const File& file : kFiles) {
    const std::string path =
        file.name == kPage ? std::string("/") : "/console/" + std::string(file.name);
    server->Handle("GET", path, [&file](const http::Request&, http::Responder respond) {
      std::move(respond)(Respond(file));
    });
  }
}

}  // namespace failback
