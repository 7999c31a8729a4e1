// The tables of the admin API and of failbackctl.

#include "daemon/admin/text_table.h"

#include <string>

#include "failback/admin/v1/admin.pb.h"
#include "failback/agent/v1/agent.pb.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

TEST(TextTableTest, ATimeThatIsNotSet_IsNoTime) {
  admin::v1::ListInstancesResponse response;
  admin::v1::InstanceSummary& row = *response.add_instances();
  row.mutable_record()->mutable_instance()->mutable_key()->set_instance_id("o1");
  row.mutable_record()->mutable_instance()->set_address("10.0.0.1");
  row.mutable_record()->mutable_instance()->set_port(80);
  row.set_state(admin::v1::INSTANCE_STATE_PENDING);
  EXPECT_EQ(MessageText(response),
            "ID  ADDRESS      STATE    ZONE  CLIENT  CHANGED\n"
            "o1  10.0.0.1:80  pending  -     -       -\n");
  row.mutable_record()->mutable_modify_time()->set_seconds(86400);
  EXPECT_EQ(MessageText(response),
            "ID  ADDRESS      STATE    ZONE  CLIENT  CHANGED\n"
            "o1  10.0.0.1:80  pending  -     -       1970-01-02T00:00:00Z\n");
}

TEST(TextTableTest, WhatIsPending_HasSinceWhenAndWhy) {
  agent::v1::ListPendingResponse response;
  agent::v1::PendingOperation& row = *response.add_operations();
  row.set_id("register default/orders/o1");
  row.set_upstream("main");
  row.set_state(agent::v1::PENDING_STATE_PARKED);
  row.set_times(1);
  row.mutable_since()->set_seconds(60);
  *row.mutable_last_status() =
      StatusToProto(Refusal(registry::v1::ERROR_REASON_TOO_LARGE, "it is too large"));
  EXPECT_EQ(MessageText(response),
            "ID                          UPSTREAM  STATE   TIMES  NEXT ATTEMPT  SINCE"
            "                 REASON     LAST STATUS\n"
            "register default/orders/o1  main      parked  1      -             "
            "1970-01-01T00:01:00Z  TOO_LARGE  it is too large\n");
}

TEST(TextTableTest, ADnsNameIsExplained) {
  admin::v1::DnsExplanation explained;
  explained.set_rcode("NODATA");
  explained.set_reason("service orders of namespace default");
  explained.set_stale(true);
  admin::v1::DnsLeftOut& left = *explained.add_left_out();
  left.set_instance_id("o1");
  left.set_endpoint("10.0.0.1:80");
  left.set_reason("draining");
  explained.set_total_left_out(3);
  admin::v1::DnsAnswer& answer = *explained.add_answers();
  answer.set_type("A");
  EXPECT_EQ(MessageText(explained),
            "NODATA (NOERROR without records): service orders of namespace default\n"
            "this is the last known state: the registry is unavailable, or the agent is drained\n"
            "\n"
            "ANSWER  RECORDS  BY UDP  BY UDP WITH EDNS  BY TCP\n"
            "A       0        0       0                 0\n"
            "\n"
            "LEFT OUT  ENDPOINT     WHY\n"
            "o1        10.0.0.1:80  draining\n"
            "and 2 more\n");
}

}  // namespace
}  // namespace failback
