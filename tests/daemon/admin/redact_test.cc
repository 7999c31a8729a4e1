#include "daemon/admin/redact.h"

#include <string>

#include "failback/agent/v1/config.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(RedactTest, PasswordsGoAndTheRestStays) {
  EXPECT_EQ(RedactUri("etcd://root:secret@10.0.0.1:2379/failback"),
            "etcd://root:***@10.0.0.1:2379/failback");
  for (const char* plain : {"grpc://127.0.0.1:7070", "sqlite:///var/lib/r@x.db", "orders", "",
                            "grpc://[::1]:7070,10.0.0.2:7070", "http://host:1/a@b"}) {
    EXPECT_EQ(RedactUri(plain), plain);
  }
}

TEST(RedactTest, WhatChecksSendIsHidden) {
  agent::v1::AgentConfig config;
  config.add_registry("grpc://127.0.0.1:7070");
  config.set_token_file("/etc/failback/token");
  auto* service = config.add_services();
  service->set_name("orders");
  (*service->mutable_metadata())["version"] = "1.2.3";
  auto* http = service->add_checks()->mutable_http();
  (*http->mutable_headers())["Authorization"] = "Bearer s3cret";
  auto* command = service->add_checks()->mutable_command();
  for (const char* word : {"/bin/check", "--password", "s3cret"}) command->add_argv(word);
  RedactConfig(&config);
  const std::string text = config.ShortDebugString();
  EXPECT_THAT(text, Not(HasSubstr("s3cret")));
  for (const char* kept :
       {"Authorization", "/bin/check", "/etc/failback/token", "1.2.3", "grpc://127.0.0.1:7070"}) {
    EXPECT_THAT(text, HasSubstr(kept));
  }
}

}  // namespace
}  // namespace failback
