#include "registry/model/batch.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"
#include "tests/registry/model/batch_check.h"
#include "tests/util/seeded_random.h"

namespace failback {
namespace {

using google::protobuf::util::MessageDifferencer;
using registry::v1::Registration;
using testing::HasSubstr;

bool AllFine(const Batch& batch) {
  return std::all_of(batch.intents().begin(), batch.intents().end(),
                     [](const Intent& intent) { return intent.status.ok(); });
}

// Requests of the usual kind, and now and then with something that is not.
class Requests {
 public:
  explicit Requests(std::mt19937_64* random) : random_(*random) {}

  size_t Below(size_t limit) { return random_() % limit; }

  RegisterRequest Ordinary() {
    RegisterRequest request;
    if (Below(4) > 0) request.set_session_id("session-1");
    if (Below(4) == 0) request.set_wait_for(registry::v1::INTENT_STATE_ACKNOWLEDGED);
    if (Below(8) == 0) request.set_check(true);
    const size_t items = 1 + Below(5);
    for (size_t i = 0; i < items; ++i) {
      Registration& item = *request.add_registrations();
      if (Below(8) > 0) item.set_generation(random_() >> (2 + Below(62)));
      ServiceInstance& instance = *item.mutable_instance();
      if (Below(2) == 0) instance.mutable_key()->set_namespace_(Name(63));
      instance.mutable_key()->set_service(Name(200));
      instance.mutable_key()->set_instance_id(absl::StrCat(i, "-", Name(200)));
      instance.set_address(Below(8) == 0 ? "fe80::1%eth0" : Name(60));
      instance.set_port(1 + Below(65535));
      if (Below(2) == 0) {
        instance.set_status(
            static_cast<registry::v1::HealthStatus>(Below(registry::v1::HealthStatus_ARRAYSIZE)));
      }
      if (Below(2) == 0) instance.set_weight(Below(65536));
      if (Below(2) == 0) instance.set_zone(Below(2) == 0 ? "zürich-1" : Name(60));
      if (Below(4) == 0) instance.set_persistent(true);
      for (size_t m = Below(9); m > 0; --m) {
        (*instance.mutable_metadata())[Name(20)] = Below(8) == 0 ? "" : Name(150);
      }
    }
    return request;
  }

  // One thing that a client may also write: refused, ignored, or allowed.
  void Spoil(RegisterRequest* request) {
    Registration& item = *request->mutable_registrations(
        static_cast<int>(Below(static_cast<size_t>(request->registrations_size()))));
    ServiceInstance& instance = *item.mutable_instance();
    switch (Below(16)) {
      case 0:
        return instance.mutable_key()->clear_service();
      case 1:
        return instance.mutable_key()->set_instance_id("has space");
      case 2:
        return instance.clear_address();
      case 3:
        return instance.set_port(70000);
      case 4:
        return instance.set_weight(1u << 30);
      case 5:
        return instance.set_status(static_cast<registry::v1::HealthStatus>(99));
      case 6:
        return instance.set_instance_count(3);
      case 7:
        return instance.mutable_offline()->set_reason("because");
      case 8: {
        (*instance.mutable_metadata())[""] = "empty key";
        return;
      }
      case 9: {
        (*instance.mutable_metadata())["k"] = std::string(1025, 'v');
        return;
      }
      case 10:
        instance.GetReflection()->MutableUnknownFields(&instance)->AddVarint(1000, 7);
        return;
      case 11:
        request->GetReflection()->MutableUnknownFields(request)->AddLengthDelimited(77, "x");
        return;
      case 12:
        *request->add_registrations() = request->registrations(0);
        return;
      case 13:
        return request->clear_registrations();
      case 14:
        return request->set_session_id(std::string(200, 's'));
      default:
        while (request->registrations_size() <= static_cast<int>(kMaxBatch)) {
          *request->add_registrations() = request->registrations(0);
        }
    }
  }

  // Bytes as no serializer writes them.
  void Mangle(std::string* bytes) {
    for (size_t i = 1 + Below(3); i > 0 && !bytes->empty(); --i) {
      const size_t at = Below(bytes->size());
      switch (Below(4)) {
        case 0:
          (*bytes)[at] = static_cast<char>(random_());
          break;
        case 1:
          (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << Below(8)));
          break;
        case 2:
          bytes->erase(at, 1 + Below(8));
          break;
        default:
          bytes->insert(at, bytes->substr(Below(bytes->size()), Below(30)));
      }
    }
  }

 private:
  std::string Name(size_t most) {
    std::string name(1 + Below(most), 'a');
    for (char& c : name) c = static_cast<char>('a' + Below(26));
    return name;
  }

  std::mt19937_64& random_;
};

TEST(Batch, WhatSerializersWriteIsRead) {
  SeededRandom seeded;
  Requests requests(&seeded.engine());
  for (int round = 0; round < 1500; ++round) {
    const RegisterRequest request = requests.Ordinary();
    const auto batch = ReadRegister(request.SerializeAsString());
    ASSERT_TRUE(batch.ok()) << batch.status() << request.ShortDebugString();
    ASSERT_TRUE(AllFine(*batch)) << request.ShortDebugString();
    ASSERT_TRUE(Same(*batch, Batch::Of(request))) << request.ShortDebugString();
    ASSERT_EQ(batch->size(), static_cast<size_t>(request.registrations_size()));
    for (size_t i = 0; i < batch->size(); ++i) {
      const Intent& intent = batch->intents()[i];
      const Registration& item = request.registrations(static_cast<int>(i));
      ASSERT_EQ(intent.key, CanonicalKey(item.instance().key()));
      ASSERT_EQ(intent.instance.view(), CanonicalRegistration(item.instance()));
      ASSERT_EQ(intent.digest, Digest64(CanonicalRegistration(item.instance())));
      ASSERT_EQ(intent.persistent, item.instance().persistent());
      ASSERT_EQ(intent.generation, item.generation());
      ASSERT_EQ(batch->generations()[i], item.generation());
    }
  }
}

TEST(Batch, ARequestOfWhichSomethingIsRefusedIsReadAsItIsParsed) {
  SeededRandom seeded;
  Requests requests(&seeded.engine());
  for (int round = 0; round < 1500; ++round) {
    RegisterRequest request = requests.Ordinary();
    requests.Spoil(&request);
    ASSERT_EQ(DifferenceFromParsed(request.SerializeAsString()), "") << request.ShortDebugString();
  }
}

TEST(Batch, AnAddressThatNoHostCanHaveIsRefused) {
  const auto status_of = [](const std::string& address) {
    RegisterRequest request;
    auto* const instance = request.add_registrations()->mutable_instance();
    instance->mutable_key()->set_service("orders");
    instance->mutable_key()->set_instance_id("o1");
    instance->set_address(address);
    instance->set_port(80);
    EXPECT_EQ(DifferenceFromParsed(request.SerializeAsString()), "") << address;
    return Batch::Of(request).intents()[0].status;
  };
  const std::string label(63, 'a');
  for (const std::string address : {"host", "host.example.com.", "1.2.3.4", "a_b.c", "::1"}) {
    EXPECT_TRUE(status_of(address).ok()) << address;
  }
  EXPECT_TRUE(status_of(label + "." + label).ok());
  for (const std::string& address :
       std::vector<std::string>{"host..x", ".", "..", ".host", "host..", label + "a.b"}) {
    const absl::Status status = status_of(address);
    EXPECT_EQ(ReasonOf(status), registry::v1::ERROR_REASON_INVALID_FIELD) << address;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("registrations[0].instance.address: \"" + address.substr(0, 60)));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("each part of a name, between its dots, has 1 to 63 characters"));
  }
}

TEST(Batch, MangledBytesMeanTheSameOrAreNotTaken) {
  SeededRandom seeded;
  Requests requests(&seeded.engine());
  int fine = 0;
  for (int round = 0; round < 10000; ++round) {
    std::string bytes = requests.Ordinary().SerializeAsString();
    requests.Mangle(&bytes);
    ASSERT_EQ(DifferenceFromParsed(bytes), "");
    const auto batch = ReadRegister(bytes);
    fine += batch.ok() && AllFine(*batch) ? 1 : 0;
  }
  EXPECT_GT(fine, 500);  // a letter of a name, say
}

std::string Field(char tag, const std::string& bytes) {
  return absl::StrCat(std::string(1, tag), std::string(1, static_cast<char>(bytes.size())), bytes);
}

TEST(Batch, UnusualEncodingsOfAValidRequestAreAccepted) {
  const std::string key = Field('\x0a', Field('\x12', "orders") + Field('\x1a', "o-1"));
  const std::string address = Field('\x12', "10.0.0.1");
  const std::string port("\x18\x50", 2);
  const auto request = [](const std::string& instance) {
    return Field('\x12', Field('\x0a', instance));
  };
  const std::string entry = Field('\x3a', Field('\x0a', "k") + Field('\x12', "v"));
  const auto usual = ReadRegister(request(key + address + port));
  const auto with_entry = ReadRegister(request(key + address + port + entry));
  ASSERT_TRUE(usual.ok() && with_entry.ok());
  const std::string long_port("\x18\xd0\x00", 3);
  const std::string not_persistent("\x40\x00", 2);
  const std::vector<std::string> unusual = {
      address + key + port,                      // out of order
      key + address + port + port,               // twice
      key + address + long_port,                 // a longer varint than needed
      key + address + port + Field('\x32', ""),  // an explicit default
      key + address + port + not_persistent,     // likewise
  };
  for (const std::string& instance : unusual) {
    const auto batch = ReadRegister(request(instance));
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_TRUE(Same(*batch, *usual));
  }
  const std::vector<std::string> unusual_entries = {
      key + address + port + entry + entry,  // a key twice
      key + address + port + Field('\x3a', Field('\x12', "v") + Field('\x0a', "k")),
  };
  for (const std::string& instance : unusual_entries) {
    const auto batch = ReadRegister(request(instance));
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_TRUE(Same(*batch, *with_entry));
  }
}

TEST(Batch, WhatIsNoRequestOrTooLargeIsRefusedAsAWhole) {
  for (const auto kind : {Batch::Kind::kRegister, Batch::Kind::kUnregister}) {
    const absl::Status none =
        Batch::Read(kind, "\xff\xff", {BatchRequest(kMaxBytes, 3), 3}).status();
    EXPECT_EQ(ReasonOf(none), registry::v1::ERROR_REASON_INVALID_FIELD);
    EXPECT_THAT(std::string(none.message()), HasSubstr("egisterRequest"));
  }
  RegisterRequest request;
  for (int i = 0; i < 4; ++i) {
    auto* const instance = request.add_registrations()->mutable_instance();
    instance->mutable_key()->set_service("orders");
    instance->mutable_key()->set_instance_id(absl::StrCat(i));
    instance->set_address("10.0.0.1");
    instance->set_port(80);
  }
  EXPECT_TRUE(ReadRegister(request.SerializeAsString(), 4).ok());
  const absl::Status status = ReadRegister(request.SerializeAsString(), 3).status();
  EXPECT_EQ(ReasonOf(status), registry::v1::ERROR_REASON_TOO_LARGE);
  EXPECT_EQ(status.message(), "registrations: has 4 items, at most 3 are allowed in one call");
  const absl::Status fields =
      Batch::Read(Batch::Kind::kRegister, std::string(10000, '\x50') + "\x01",
                  {WireBounds{kMaxBytes, 100}, 1000})
          .status();
  EXPECT_EQ(ReasonOf(fields), registry::v1::ERROR_REASON_TOO_LARGE) << fields;
}

RegisterRequest SomeRequest() {
  RegisterRequest request;
  request.set_session_id("s");
  request.set_wait_for(registry::v1::INTENT_STATE_ACKNOWLEDGED);
  request.set_check(true);
  for (const uint32_t port : {80, 70000, 81}) {
    auto* const item = request.add_registrations();
    item->set_generation(port == 80 ? 0 : 5 + port);
    ServiceInstance& instance = *item->mutable_instance();
    instance.mutable_key()->set_namespace_("n");
    instance.mutable_key()->set_service("orders");
    instance.mutable_key()->set_instance_id(absl::StrCat(port));
    instance.set_address("10.0.0.1");
    instance.set_port(port);
    for (const char* key : {"c", "a", "b"}) (*instance.mutable_metadata())[key] = "1";
  }
  return request;
}

TEST(Batch, IsEncodedAsTheRequestWithWhatIsRefusedAsItCame) {
  const RegisterRequest request = SomeRequest();
  const Batch batch = Batch::Of(request);
  EXPECT_FALSE(batch.intents()[1].status.ok());
  RegisterRequest encoded;
  ASSERT_TRUE(encoded.ParseFromString(batch.Encode()));
  EXPECT_TRUE(MessageDifferencer::Equals(encoded, request)) << encoded.DebugString();

  UnregisterRequest removals;
  removals.set_session_id("s");
  for (const char* service : {"orders", "", "has space"}) {
    auto* const item = removals.add_deregistrations();
    item->mutable_key()->set_namespace_("n");
    item->mutable_key()->set_service(service);
    item->mutable_key()->set_instance_id("1");
    item->set_generation(7);
  }
  const Batch removed = Batch::Of(removals);
  EXPECT_TRUE(removed.intents()[0].status.ok());
  EXPECT_FALSE(removed.intents()[1].status.ok());
  UnregisterRequest encoded_removals;
  ASSERT_TRUE(encoded_removals.ParseFromString(removed.Encode()));
  EXPECT_TRUE(MessageDifferencer::Equals(encoded_removals, removals))
      << encoded_removals.DebugString();
  const auto read = Batch::Read(Batch::Kind::kUnregister, removed.Encode(),
                                {BatchRequest(kMaxBytes, kMaxBatch), kMaxBatch});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(Same(*read, removed));
}

TEST(Batch, WhatWasPutIsAsItWasInTheBatchBefore) {
  RegisterRequest request = SomeRequest();
  request.clear_wait_for();
  request.clear_check();
  request.mutable_registrations(1)->mutable_instance()->set_port(82);  // not refused
  const Batch wanted = Batch::Of(request);
  Batch put(Batch::Kind::kRegister, request.session_id());
  for (const Intent& intent : wanted.intents()) {
    put.Put(intent.key, intent.instance, intent.persistent, intent.generation);
  }
  EXPECT_EQ(put.Encode(), wanted.Encode());
  EXPECT_TRUE(put.Check(kMaxBatch).ok());
  EXPECT_TRUE(Same(put, wanted));

  // It is not read again.
  const std::string key = CanonicalKey("default", "orders", "1");
  Batch unread(Batch::Kind::kRegister);
  unread.Put(key, Blob("\xff\xff"), true, 7);
  EXPECT_TRUE(unread.Check(kMaxBatch).ok());
  EXPECT_TRUE(unread.intents()[0].status.ok());
  EXPECT_EQ(unread.intents()[0].instance.view(), "\xff\xff");

  Batch removal(Batch::Kind::kUnregister);
  removal.Remove(wanted.intents()[0].key, 3);
  EXPECT_TRUE(removal.Check(kMaxBatch).ok());
  UnregisterRequest removed;
  ASSERT_TRUE(removed.ParseFromString(removal.Encode()));
  EXPECT_TRUE(MessageDifferencer::Equals(removed.deregistrations(0).key(),
                                         request.registrations(0).instance().key()));
  EXPECT_EQ(removed.deregistrations(0).generation(), 3u);
}

TEST(Batch, RefusedIntentsAreTakenOutAndAnsweredInTheirPlaces) {
  const std::vector<absl::Status> statuses = {absl::OkStatus(), absl::PermissionDeniedError("no"),
                                              absl::OkStatus()};
  for (const bool left_out : {true, false}) {
    Batch batch = Batch::Of(SomeRequest());
    absl::StatusOr<BatchResult> answer = absl::UnknownError("none");
    Batch::Done done = batch.Refuse(statuses, [&](auto result) { answer = std::move(result); });
    ASSERT_EQ(batch.size(), 2u);
    EXPECT_EQ(batch.intents()[1].generation, 86u);
    BatchResult result;
    result.revision = 9;
    if (!left_out) {
      result.results.resize(2);
      *result.results[1].mutable_status() = StatusToProto(absl::AbortedError("later"));
    }
    std::move(done)(result);
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer->revision, 9u);
    ASSERT_EQ(answer->results.size(), 3u);
    EXPECT_EQ(StatusFromProto(answer->results[0].status()), absl::OkStatus());
    EXPECT_EQ(StatusFromProto(answer->results[1].status()), absl::PermissionDeniedError("no"));
    if (left_out) {
      EXPECT_EQ(answer->results[2].state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);
      EXPECT_EQ(answer->results[2].generation(), 86u);
    } else {
      EXPECT_EQ(StatusFromProto(answer->results[2].status()), absl::AbortedError("later"));
    }
  }
  Batch batch = Batch::Of(SomeRequest());
  absl::StatusOr<BatchResult> answer = BatchResult();
  Batch::Done done = batch.Refuse(statuses, [&](auto result) { answer = std::move(result); });
  std::move(done)(absl::UnavailableError("away"));
  EXPECT_EQ(answer.status(), absl::UnavailableError("away"));
}

TEST(BatchResult, IsEncodedAsTheMessage) {
  SeededRandom seeded;
  auto& random = seeded.engine();
  for (int i = 0; i < 1000; ++i) {
    std::vector<IntentOutcome> outcomes(random() % 5);
    Batch::Generations asked;
    bool as_asked = true;
    for (IntentOutcome& outcome : outcomes) {
      if (random() % 4 == 0) {
        outcome.status = Refusal(registry::v1::ERROR_REASON_SUPERSEDED,
                                 std::string(random() % 300, 'x'), {{"rank", "7"}});
        as_asked = false;
      } else if (random() % 8 > 0) {
        outcome.generation = random() >> (random() % 64);
      }
      asked.push_back(outcome.generation);
    }
    const uint64_t epoch = random() % 8 == 0 ? 0 : random() >> (random() % 64);
    const uint64_t revision = random() % 8 == 0 ? 0 : random() >> (random() % 64);
    const BatchResult whole = ResultOf(outcomes, /*as_asked=*/false, epoch, revision);
    const BatchResult result = ResultOf(outcomes, as_asked, epoch, revision);
    const std::string bytes = BatchResult(whole).ToResponse<RegisterResponse>().SerializeAsString();
    EXPECT_EQ(EncodeResponse(whole, nullptr), bytes);
    EXPECT_EQ(EncodeResponse(result, &asked), bytes);
    RegisterResponse read;
    ASSERT_TRUE(read.ParseFromString(EncodeResponse(result, nullptr)));
    EXPECT_EQ(read.results_size(), as_asked ? 0 : static_cast<int>(outcomes.size()));
    EXPECT_EQ(read.epoch(), epoch);
    EXPECT_EQ(read.revision(), revision);
    BatchResult filled = result;
    FillIn(asked, &filled);
    EXPECT_EQ(std::move(filled).ToResponse<RegisterResponse>().SerializeAsString(), bytes);
  }
}

}  // namespace
}  // namespace failback
