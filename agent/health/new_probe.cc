#include "agent/health/new_probe.h"

#include <string>

#include "agent/health/command_probe.h"
#include "agent/health/grpc_probe.h"
#include "agent/health/http_probe.h"
#include "agent/health/socket_probes.h"
#include "registry/base/address.h"

namespace failback {
namespace {

// Of an address that was checked before.
Address Parse(const std::string& text) { return ParseAddress(text).value_or(Address()); }

}  // namespace

std::unique_ptr<Probe> NewProbe(IoThread* io, const agent::v1::HealthCheck& check) {
  if (check.has_http()) {
    const agent::v1::HttpCheck& http = check.http();
    HttpQuestion question;
    if (!http.method().empty()) question.method = http.method();
    if (!http.path().empty()) question.path = http.path();
    question.host = http.host();
    question.headers = {http.headers().begin(), http.headers().end()};
    question.expect_status = http.expect_status();
    if (http.has_tls()) {
      question.tls = {http.tls().ca(), http.tls().server_name(), http.tls().skip_verify()};
    }
    return NewHttpProbe(io, Parse(http.address()), question);
  }
  if (check.has_grpc()) return NewGrpcProbe(Parse(check.grpc().address()), check.grpc().service());
  if (check.has_command()) {
    return NewCommandProbe(io, {check.command().argv().begin(), check.command().argv().end()});
  }
  return NewTcpProbe(io, Parse(check.tcp().address()));
}

}  // namespace failback
