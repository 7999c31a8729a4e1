// Records whose text no client can read, as an earlier version stored them: they harm no other
// record.

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/registry/registry_calls.h"
#include "tests/registry/store/fake_storage.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using ::testing::HasSubstr;

class StoredTextTest : public ::testing::Test, public RegistryCalls {
 protected:
  StoredTextTest() {
    SetLogSink(LogLevel::kWarning, [this](LogLevel, const std::string& event, const LogFields& f) {
      log_ += FormatLogLine(event, f) + "\n";
    });
    timer_ = NewTimer(&clock_);
    Open();
  }
  ~StoredTextTest() override { SetLogSink(LogLevel::kWarning, nullptr); }

  void Open() {
    StoreRegistry::Options options;
    options.timer = timer_.get();
    options.commit_inline = true;
    registry_ = StoreRegistry::OpenOn(options, std::make_unique<FakeStorage>(&rows_)).value();
  }
  Registry& registry() override { return *registry_; }

  absl::Status SetOffline(const std::string& id, const std::string& reason, const std::string& by) {
    SetOfflineRequest request;
    *request.mutable_key() = MakeInstance("orders", id).key();
    request.set_offline(true);
    request.set_reason(reason);
    request.set_by(by);
    return CallAndWait(*registry_, &Registry::SetOffline, request).status();
  }

  // What a stock client gets, which parses the bytes.
  ListResponse OverTheWire() {
    ListRequest request;
    request.mutable_selector()->set_service("orders");
    const auto response = CallAndWait(*registry_, &Registry::List, request);
    EXPECT_TRUE(response.ok()) << response.status();
    ListResponse parsed;
    EXPECT_TRUE(parsed.ParseFromString(response->SerializeAsString()));
    return parsed;
  }

  RecordRow& RowOf(const std::string& id) {
    for (auto& [row_id, entry] : rows_.records) {
      if (entry.first == CanonicalKey(MakeInstance("orders", id).key())) return entry.second;
    }
    ADD_FAILURE() << id;
    return rows_.records.begin()->second.second;
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  FakeRows rows_;
  std::unique_ptr<StoreRegistry> registry_;
  std::string log_;
};

TEST_F(StoredTextTest, AMarkThatNobodyCouldReadIsRefused) {
  const std::string session = Session("a");
  ASSERT_TRUE(Register(session, MakeInstance("orders", "1"), 1).ok());
  EXPECT_EQ(SetOffline("1", "disk", std::string(126, 'x') + "\xc3"),
            InvalidField("by", "\"" + std::string(64, 'x') + "\"... is not UTF-8"));
  EXPECT_EQ(ReasonOf(SetOffline("1", "\xe9", "alice")), registry::v1::ERROR_REASON_INVALID_FIELD);
  for (const char* control : {"a\nb", "a\x1b[31m", "a\xc2\x9b"}) {
    EXPECT_EQ(ReasonOf(SetOffline("1", control, "alice")),
              registry::v1::ERROR_REASON_INVALID_FIELD);
    EXPECT_EQ(ReasonOf(SetOffline("1", "disk", control)), registry::v1::ERROR_REASON_INVALID_FIELD);
  }
  EXPECT_EQ(SetOffline("1", "é", "token é"), absl::OkStatus());
  EXPECT_EQ(OverTheWire().records(0).instance().offline().by(), "token é");
}

TEST_F(StoredTextTest, WhatIsStoredHarmsNoNeighbour) {
  const std::string session = Session("a");
  for (const char* id : {"1", "2", "3"}) {
    ASSERT_TRUE(Register(session, MakeInstance("orders", id), 1).ok());
  }
  ASSERT_EQ(SetOffline("1", "disk", "alice"), absl::OkStatus());
  registry_.reset();
  registry::v1::OfflineMark mark;
  mark.set_reason("disk");
  mark.set_by("token \xc3");  // as it was cut
  RowOf("1").offline = Blob(mark.SerializeAsString());
  ServiceInstance instance = MakeInstance("orders", "2");
  instance.set_zone("\xe9");
  RowOf("2").instance = Blob(CanonicalInstance(instance));
  rows_.incarnations.begin()->second.client_name = "agent \xe9";
  Open();

  const ListResponse list = OverTheWire();
  ASSERT_EQ(list.records_size(), 2);
  EXPECT_EQ(list.records(0).instance().offline().by(), "token ?") << "out of rotation as before";
  EXPECT_EQ(list.records(0).client_name(), "agent ?");
  EXPECT_EQ(list.records(1).instance().key().instance_id(), "3");
  EXPECT_THAT(log_, HasSubstr("default/orders/1"));
  EXPECT_THAT(log_, HasSubstr("default/orders/2"));
  EXPECT_EQ(registry_->CheckInvariants(), absl::OkStatus());
  // Its owner states it again.
  EXPECT_TRUE(Register(session, MakeInstance("orders", "2"), 2).ok());
  EXPECT_EQ(OverTheWire().records_size(), 3);
}

TEST_F(StoredTextTest, HoweverManyThereAreTheLogIsShort) {
  const std::string session = Session("a");
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(Register(session, MakeInstance("orders", absl::StrCat(i)), 1).ok());
  }
  registry_.reset();
  for (int i = 0; i < 49; ++i) {
    ServiceInstance instance = MakeInstance("orders", absl::StrCat(i));
    instance.set_zone("\xe9");
    RowOf(absl::StrCat(i)).instance = Blob(CanonicalInstance(instance));
  }
  Open();
  EXPECT_EQ(OverTheWire().records_size(), 1);
  int told = 0;
  for (size_t at = log_.find("left out"); at != std::string::npos;
       at = log_.find("left out", at + 1)) {
    ++told;
  }
  EXPECT_EQ(told, 20) << log_;
}

}  // namespace
}  // namespace failback
