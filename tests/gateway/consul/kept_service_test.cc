// What an agent keeps of a Consul client's registration comes back as it was.

#include "gateway/consul/kept_service.h"

#include <string>

#include "gtest/gtest.h"

namespace failback::consul {
namespace {

TEST(KeptServiceTest, AllOfItComesBack) {
  const auto definition = ParseService(R"({"Name":"a\"b","ID":"i/%","Address":"10.0.0.1","Port":80,
      "Tags":["x","y,z"],"Meta":{"k":"v\n"},"Weights":{"Passing":7},"Locality":{"Zone":"eu"},
      "Checks":[
        {"CheckID":"t","Name":"n","Notes":"o","TTL":"90s","Status":"warning",
         "DeregisterCriticalServiceAfter":"72h"},
        {"HTTP":"https://h/x","Interval":"1500ms","Timeout":"2s","Method":"HEAD",
         "Header":{"A":["1","2"]},"TLSSkipVerify":true,"TLSServerName":"s",
         "SuccessBeforePassing":2,"FailuresBeforeCritical":3},
        {"TCP":"h:1","Interval":"1s"},{"GRPC":"h:2/s","Interval":"1s"}]})");
  ASSERT_TRUE(definition.ok()) << definition.status();
  KeptService kept;
  kept.definition = *definition;
  kept.name_space = "eu";
  kept.owner = {Identity::Kind::kToken, {"ci", "other"}, std::string("\0\xff", 2)};
  kept.maintenance = true;
  kept.reason = "disk";
  const auto back = ParseKept(KeptText(kept));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(KeptText(*back), KeptText(kept));
  EXPECT_EQ(back->owner.token_digest, kept.owner.token_digest);
  EXPECT_EQ(back->owner.ToString(), kept.owner.ToString());
  EXPECT_TRUE(back->maintenance);
  ASSERT_EQ(back->definition.checks.size(), 4u);
  EXPECT_EQ(back->definition.checks[0].ttl, absl::Seconds(90));
  EXPECT_EQ(back->definition.checks[0].status, CheckStatus::kWarning);
  EXPECT_EQ(back->definition.checks[0].deregister_after, absl::Hours(72));
  EXPECT_EQ(back->definition.checks[1].interval, absl::Milliseconds(1500));
  EXPECT_EQ(back->definition.checks[1].headers, definition->checks[1].headers);
  EXPECT_EQ(back->definition.checks[1].failures, 3u);
  EXPECT_EQ(back->definition.checks[3].target, "h:2/s");
  EXPECT_EQ(back->definition.meta, definition->meta);
  EXPECT_EQ(back->definition.tags, definition->tags);
  EXPECT_EQ(back->definition.weight, definition->weight);
}

TEST(KeptServiceTest, WhatIsNoneIsRefused) {
  for (const char* text : {"", "{", "{}", R"({"Registration":"{"})", R"({"Other":1})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseKept(text).status())) << text;
  }
}

}  // namespace
}  // namespace failback::consul
