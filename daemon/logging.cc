#include "daemon/logging.h"

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/util/json_util.h"
#include "grpc/support/log.h"
#include "registry/base/utf8.h"
#include "spdlog/logger.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace failback {
namespace {

std::string JsonString(const std::string& text) {
  google::protobuf::Value value;
  value.set_string_value(text);
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(value, &json).ok()) return "\"\"";
  return WithControlsEscaped(std::move(json));
}

std::string Now() {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

LogLevel FromConfig(config::v1::LogLevel level) {
  switch (level) {
    case config::v1::LOG_LEVEL_DEBUG:
      return LogLevel::kDebug;
    case config::v1::LOG_LEVEL_WARNING:
      return LogLevel::kWarning;
    case config::v1::LOG_LEVEL_ERROR:
      return LogLevel::kError;
    default:
      return LogLevel::kInfo;
  }
}

// What OpenSSL says when a handshake fails, as over a certificate that has ended: gRPC reports it
// nowhere else. A peer causes it as often as it likes.
bool IsFailedHandshake(const gpr_log_func_args& args) {
  return args.severity == GPR_LOG_SEVERITY_ERROR &&
         absl::EndsWith(args.file, "/ssl_transport_security.cc");
}

void LogFromGrpc(gpr_log_func_args* args) {
  if (IsFailedHandshake(*args)) {
    static auto* const throttle = new LogThrottle;
    return throttle->Log(LogLevel::kWarning, "TLS handshake failed", {{"error", args->message}});
  }
  Log(LogLevel::kDebug, "grpc",
      {{"severity", gpr_log_severity_string(args->severity)},
       {"at", absl::StrCat(args->file, ":", args->line)},
       {"message", args->message}});
}

// As of a text that is no UTF-8, which a client can send as often as it likes.
void LogFromProtobuf(google::protobuf::LogLevel /*level*/, const char* file, int line,
                     const std::string& message) {
  static auto* const throttle = new LogThrottle;
  throttle->Log(LogLevel::kWarning, "protobuf",
                {{"at", absl::StrCat(file, ":", line)}, {"message", message}});
}

}  // namespace

std::string FormatLogJson(const std::string& time, LogLevel level, const std::string& event,
                          const LogFields& fields) {
  std::string line = absl::StrCat("{\"time\":", JsonString(time), ",\"level\":\"",
                                  LogLevelName(level), "\",\"event\":", JsonString(event));
  for (const auto& [name, value] : fields) {
    absl::StrAppend(&line, ",", JsonString(name), ":", JsonString(value));
  }
  return line + "}";
}

void InstallLogging(const config::v1::Log& config) {
  const LogLevel level = FromConfig(config.level());
  auto logger = std::make_shared<spdlog::logger>("failback",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  // The lines are made whole here, so that fields stay fields.
  logger->set_pattern("%v");
  // What is logged at all is decided by Log().
  logger->set_level(spdlog::level::trace);
  logger->flush_on(spdlog::level::trace);
  const bool json = config.format() == config::v1::LOG_FORMAT_JSON;
  SetLogSink(level,
             [logger, json](LogLevel level, const std::string& event, const LogFields& fields) {
               if (json) {
                 logger->log(ToSpdlog(level), FormatLogJson(Now(), level, event, fields));
               } else {
                 logger->log(ToSpdlog(level), fmt::format("{} {:<7} {}", Now(), LogLevelName(level),
                                                          FormatLogLine(event, fields)));
               }
             });
  gpr_set_log_function(LogFromGrpc);
  google::protobuf::SetLogHandler(LogFromProtobuf);
}

void SilenceGrpcLogging() {
  gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace failback
