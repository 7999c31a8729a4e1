#include "registry/model/encoded_batch.h"

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "tests/registry/model/encoded_batch_check.h"

namespace failback {
namespace {

using registry::v1::Registration;

uint64_t Seed() {
  const char* const text = std::getenv("FAILBACK_TEST_SEED");
  return text == nullptr ? 20261121 : std::strtoull(text, nullptr, 10);
}

// Requests of the usual kind, and now and then with something that is not.
class Requests {
 public:
  explicit Requests(uint64_t seed) : random_(seed) {}

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
        while (request->registrations_size() <= static_cast<int>(kCheckedMaxBatch)) {
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

  std::mt19937_64 random_;
};

TEST(EncodedBatch, WhatSerializersWriteIsTakenAndMeansTheSame) {
  SCOPED_TRACE(absl::StrCat("FAILBACK_TEST_SEED=", Seed()));
  Requests requests(Seed());
  for (int round = 0; round < 1500; ++round) {
    const RegisterRequest request = requests.Ordinary();
    const std::string bytes = request.SerializeAsString();
    ASSERT_TRUE(SpellEncodedRegister(bytes, kCheckedMaxBatch).has_value())
        << request.ShortDebugString();
    ASSERT_EQ(DifferenceFromParsed(bytes), "") << request.ShortDebugString();
  }
}

TEST(EncodedBatch, WhatMayBeRefusedIsLeftToTheParser) {
  SCOPED_TRACE(absl::StrCat("FAILBACK_TEST_SEED=", Seed()));
  Requests requests(Seed());
  for (int round = 0; round < 1500; ++round) {
    RegisterRequest request = requests.Ordinary();
    requests.Spoil(&request);
    const std::string bytes = request.SerializeAsString();
    ASSERT_FALSE(SpellEncodedRegister(bytes, kCheckedMaxBatch).has_value())
        << request.ShortDebugString();
  }
}

TEST(EncodedBatch, MangledBytesMeanTheSameOrAreNotTaken) {
  SCOPED_TRACE(absl::StrCat("FAILBACK_TEST_SEED=", Seed()));
  Requests requests(Seed());
  int taken = 0;
  for (int round = 0; round < 10000; ++round) {
    std::string bytes = requests.Ordinary().SerializeAsString();
    requests.Mangle(&bytes);
    ASSERT_EQ(DifferenceFromParsed(bytes), "");
    taken += SpellEncodedRegister(bytes, kCheckedMaxBatch).has_value() ? 1 : 0;
  }
  EXPECT_GT(taken, 500);  // a letter of a name, say
}

std::string Field(char tag, const std::string& bytes) {
  return absl::StrCat(std::string(1, tag), std::string(1, static_cast<char>(bytes.size())), bytes);
}

TEST(EncodedBatch, UnusualSpellingsOfAValidRequestAreNotTaken) {
  const std::string key = Field('\x0a', Field('\x12', "orders") + Field('\x1a', "o-1"));
  const std::string address = Field('\x12', "10.0.0.1");
  const std::string port("\x18\x50", 2);
  const auto request = [](const std::string& instance) {
    return Field('\x12', Field('\x0a', instance));
  };
  const std::string entry = Field('\x3a', Field('\x0a', "k") + Field('\x12', "v"));
  ASSERT_TRUE(SpellEncodedRegister(request(key + address + port + entry), 1).has_value());
  const std::string long_zero("\x18\xd0\x00", 3);
  const std::string not_persistent("\x40\x00", 2);
  const std::string no_weight_twice("\x28\x01\x28\x01", 4);
  for (const std::string& instance : {
           address + key + port,                                      // out of order
           key + address + port + port,                               // twice
           key + address + long_zero,                                 // a longer varint than needed
           key + address + port + Field('\x32', ""),                  // a default spelled out
           key + address + port + not_persistent,                     // likewise
           key + address + no_weight_twice,                           // twice
           key + address + port + entry + entry,                      // a key twice
           key + address + port + Field('\x3a', Field('\x0a', "k")),  // a value left out
           key + address + port + Field('\x3a', Field('\x12', "v") + Field('\x0a', "k")),
       }) {
    EXPECT_FALSE(SpellEncodedRegister(request(instance), 1).has_value());
  }
  EXPECT_FALSE(SpellEncodedRegister(request(key + address + port) + Field('\x0a', "s"), 1));
  EXPECT_FALSE(SpellEncodedRegister("", 1).has_value());
}

TEST(EncodedRegisterResponse, HasTheBytesOfTheMessage) {
  std::mt19937_64 random(Seed());
  for (int i = 0; i < 1000; ++i) {
    std::vector<IntentOutcome> outcomes(random() % 5);
    for (IntentOutcome& outcome : outcomes) {
      if (random() % 4 == 0) {
        outcome.status = Refusal(registry::v1::ERROR_REASON_SUPERSEDED,
                                 std::string(random() % 300, 'x'), {{"rank", "7"}});
      } else if (random() % 8 > 0) {
        outcome.generation = random() >> (random() % 64);
      }
    }
    const uint64_t epoch = random() % 8 == 0 ? 0 : random() >> (random() % 64);
    const uint64_t revision = random() % 8 == 0 ? 0 : random() >> (random() % 64);
    EXPECT_EQ(EncodedRegisterResponse(outcomes, epoch, revision),
              BatchResponse<RegisterResponse>(outcomes, epoch, revision).SerializeAsString())
        << "seed " << Seed() << ", round " << i;
  }
}

}  // namespace
}  // namespace failback
