#include "registry/model/validation.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/batch.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

ServiceInstance Valid() {
  ServiceInstance instance = MakeInstance("orders", "orders-1", 8080);
  instance.mutable_key()->set_namespace_("prod");
  return instance;
}

void ExpectInvalid(const absl::Status& status, const std::string& field,
                   const std::string& description) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ReasonOf(status), registry::v1::ERROR_REASON_INVALID_FIELD) << status;
  EXPECT_EQ(ReasonMetadata(status, "field").value_or("none"), field);
  EXPECT_THAT(std::string(status.message()), StartsWith(field + ": "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(description));
}

// Of the items, and of the call as a whole, as a batch has them.
template <typename Request>
std::vector<absl::Status> StatusesOf(const Request& request) {
  std::vector<absl::Status> statuses;
  const Batch batch = Batch::Of(request);
  for (const Intent& intent : batch.intents()) statuses.push_back(intent.status);
  return statuses;
}
template <typename Request>
absl::Status CheckCall(const Request& request, uint32_t max_batch = kDefaultMaxBatch) {
  return Batch::Of(request).Check(max_batch);
}

struct InstanceCase {
  const char* name;
  std::function<void(ServiceInstance&)> change;
  const char* field;  // null: still valid
  const char* description;
};

std::string Repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

void AddMetadata(ServiceInstance& instance, int entries, int key_bytes, int value_bytes) {
  for (int i = 0; i < entries; ++i) {
    std::string key = std::to_string(i);
    key.insert(0, key_bytes - key.size(), 'k');
    (*instance.mutable_metadata())[key] = std::string(value_bytes, 'v');
  }
}

const std::vector<InstanceCase>& InstanceCases() {
  using I = ServiceInstance;
  static const auto* cases = new std::vector<InstanceCase>{
      {"AsIs", [](I&) {}, nullptr, ""},
      {"EmptyNamespace", [](I& i) { i.mutable_key()->clear_namespace_(); }, nullptr, ""},
      {"OneLetterNamespace", [](I& i) { i.mutable_key()->set_namespace_("a"); }, nullptr, ""},
      {"LongestNamespace", [](I& i) { i.mutable_key()->set_namespace_(Repeat("n", 63)); }, nullptr,
       ""},
      {"LongNamespace", [](I& i) { i.mutable_key()->set_namespace_(Repeat("n", 64)); },
       "at.key.namespace", "is 64 characters long, at most 63"},
      {"SlashInNamespace", [](I& i) { i.mutable_key()->set_namespace_("a/b"); }, "at.key.namespace",
       "\"a/b\" may hold letters, digits and . _ - only"},
      {"NamespaceBeginsWithDot", [](I& i) { i.mutable_key()->set_namespace_(".a"); },
       "at.key.namespace", "must begin and end with a letter or digit"},
      {"NamespaceEndsWithDash", [](I& i) { i.mutable_key()->set_namespace_("a-"); },
       "at.key.namespace", "must begin and end with a letter or digit"},
      {"EmptyService", [](I& i) { i.mutable_key()->clear_service(); }, "at.key.service",
       "is required"},
      {"PathService", [](I& i) { i.mutable_key()->set_service("com.acme/Orders_v-1"); }, nullptr,
       ""},
      {"LongestService", [](I& i) { i.mutable_key()->set_service(Repeat("s", 253)); }, nullptr, ""},
      {"LongService", [](I& i) { i.mutable_key()->set_service(Repeat("s", 254)); },
       "at.key.service", "is 254 characters long, at most 253"},
      {"SpaceInService", [](I& i) { i.mutable_key()->set_service("my orders"); }, "at.key.service",
       "\"my orders\" may hold"},
      {"NulInService", [](I& i) { i.mutable_key()->set_service(std::string("a\0x", 3)); },
       "at.key.service", "\"a\\x00x\" may hold"},
      {"EmptyId", [](I& i) { i.mutable_key()->clear_instance_id(); }, "at.key.instance_id",
       "is required"},
      {"HostPortId", [](I& i) { i.mutable_key()->set_instance_id("10.0.0.7:8080"); }, nullptr, ""},
      {"SpaceInId", [](I& i) { i.mutable_key()->set_instance_id("a b"); }, "at.key.instance_id",
       "printable ASCII without space"},
      {"UmlautInId", [](I& i) { i.mutable_key()->set_instance_id("\xc3\xbc"); },
       "at.key.instance_id", "printable ASCII without space"},
      {"LongId", [](I& i) { i.mutable_key()->set_instance_id(Repeat("i", 254)); },
       "at.key.instance_id", "is 254 characters long, at most 253"},
      {"NoAddress", [](I& i) { i.clear_address(); }, "at.address", "is required"},
      {"HostName", [](I& i) { i.set_address("orders-1.svc.cluster.local"); }, nullptr, ""},
      {"Ipv6", [](I& i) { i.set_address("2001:db8::1"); }, nullptr, ""},
      {"Ipv6WithZone", [](I& i) { i.set_address("fe80::1%eth0"); }, nullptr, ""},
      {"Ipv6ZoneNotReadable", [](I& i) { i.set_address("fe80::1%a\nb"); }, "at.address", "neither"},
      {"Ipv6ZoneEmpty", [](I& i) { i.set_address("fe80::1%"); }, "at.address", "neither"},
      {"AddressWithPort", [](I& i) { i.set_address("10.0.0.7:80"); }, "at.address",
       "\"10.0.0.7:80\" is neither a host name nor an IP address"},
      {"AddressInBrackets", [](I& i) { i.set_address("[::1]"); }, "at.address", "no brackets"},
      {"AddressIsUrl", [](I& i) { i.set_address("a/b"); }, "at.address", "neither"},
      {"LongAddress", [](I& i) { i.set_address(Repeat("a", 254)); }, "at.address", "at most 253"},
      {"PortZero", [](I& i) { i.set_port(0); }, "at.port", "0 is not in 1..65535"},
      {"PortOne", [](I& i) { i.set_port(1); }, nullptr, ""},
      {"PortHighest", [](I& i) { i.set_port(65535); }, nullptr, ""},
      {"PortTooHigh", [](I& i) { i.set_port(70000); }, "at.port", "70000 is not in 1..65535"},
      {"StatusDraining", [](I& i) { i.set_status(registry::v1::HEALTH_STATUS_DRAINING); }, nullptr,
       ""},
      {"StatusUnknown", [](I& i) { i.set_status(static_cast<registry::v1::HealthStatus>(17)); },
       "at.status", "17 is not a HealthStatus"},
      {"WeightZero", [](I& i) { i.set_weight(0); }, nullptr, ""},
      {"WeightHighest", [](I& i) { i.set_weight(65535); }, nullptr, ""},
      {"WeightTooHigh", [](I& i) { i.set_weight(65536); }, "at.weight", "65536 is not in 0..65535"},
      {"LongestZoneIsCountedInCharacters", [](I& i) { i.set_zone(Repeat("\xc3\xbc", 63)); },
       nullptr, ""},
      {"LongZone", [](I& i) { i.set_zone(Repeat("z", 64)); }, "at.zone", "is 64 characters long"},
      {"ZoneWithNewline", [](I& i) { i.set_zone("a\nb"); }, "at.zone",
       "\"a\\nb\" holds a control character"},
      {"ZoneWithAnEscapeOfEightBits", [](I& i) { i.set_zone("a\xc2\x9b"); }, "at.zone",
       "holds a control character"},
      {"ZoneNotUtf8", [](I& i) { i.set_zone("\xff"); }, "at.zone", "is not UTF-8"},
      {"ZoneOverlongUtf8", [](I& i) { i.set_zone("\xe0\x80\x80"); }, "at.zone", "is not UTF-8"},
      {"ZoneSurrogate", [](I& i) { i.set_zone("\xed\xa0\x80"); }, "at.zone", "is not UTF-8"},
      {"ZoneCutUtf8", [](I& i) { i.set_zone("a\xe2\x82"); }, "at.zone", "is not UTF-8"},
      {"MostMetadata", [](I& i) { AddMetadata(i, 64, 8, 8); }, nullptr, ""},
      {"TooManyMetadata", [](I& i) { AddMetadata(i, 65, 8, 8); }, "at.metadata",
       "has 65 entries, at most 64"},
      {"LongestMetadataKeyAndValue", [](I& i) { AddMetadata(i, 1, 128, 1024); }, nullptr, ""},
      {"MetadataAtTheLimitInAll", [](I& i) { AddMetadata(i, 16, 24, 1000); }, nullptr, ""},
      {"MetadataOverTheLimitInAll", [](I& i) { AddMetadata(i, 17, 24, 1000); }, "at.metadata",
       "is 17408 bytes in all, at most 16384"},
      {"EmptyMetadataKey", [](I& i) { (*i.mutable_metadata())[""] = "v"; }, "at.metadata",
       "empty key"},
      {"EmptyMetadataValue", [](I& i) { (*i.mutable_metadata())["k"] = ""; }, nullptr, ""},
      {"LongMetadataValue", [](I& i) { (*i.mutable_metadata())["k"] = Repeat("v", 1025); },
       "at.metadata[\"k\"]", "the value is 1025 bytes long, at most 1024"},
      {"MetadataKeyNotUtf8", [](I& i) { (*i.mutable_metadata())["k\xe9"] = "v"; },
       "at.metadata[\"k\\xe9\"]", "the key is not UTF-8"},
      {"MetadataValueNotUtf8", [](I& i) { (*i.mutable_metadata())["k"] = "\x80"; },
       "at.metadata[\"k\"]", "the value is not UTF-8"},
  };
  return *cases;
}

class InstanceValidation : public ::testing::TestWithParam<InstanceCase> {};

TEST_P(InstanceValidation, ClearErrorOrNone) {
  ServiceInstance instance = Valid();
  GetParam().change(instance);
  const absl::Status status = ValidateInstance(FieldPath("at"), instance);
  if (GetParam().field == nullptr) {
    EXPECT_TRUE(status.ok()) << status;
  } else {
    ExpectInvalid(status, GetParam().field, GetParam().description);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, InstanceValidation, ::testing::ValuesIn(InstanceCases()),
                         [](const auto& info) { return info.param.name; });

TEST(Validation, LongMetadataKeyIsNamedButCut) {
  ServiceInstance instance = Valid();
  AddMetadata(instance, 1, 129, 1);
  const absl::Status status = ValidateInstance(FieldPath("at"), instance);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the key is 129 bytes long, at most 128"));
  EXPECT_LT(status.message().size(), 160u);
}

TEST(Validation, UnknownFieldsCountForTheSize) {
  ServiceInstance instance = Valid();
  instance.GetReflection()->MutableUnknownFields(&instance)->AddLengthDelimited(
      1000, std::string(kMaxInstanceBytes, 'x'));
  ExpectInvalid(ValidateInstance(FieldPath("at"), instance), "at", "at most 65536 are allowed");
}

TEST(Validation, BatchHasOneStatusPerItemAndNamesIt) {
  RegisterRequest request;
  for (int i = 0; i < 5; ++i) {
    *request.add_registrations()->mutable_instance() = Valid();
    request.mutable_registrations(i)->mutable_instance()->mutable_key()->set_instance_id(
        std::to_string(i));
  }
  request.mutable_registrations(1)->clear_instance();
  request.mutable_registrations(3)->mutable_instance()->set_port(70000);
  // The same key, written in another way.
  request.mutable_registrations(2)->mutable_instance()->mutable_key()->clear_namespace_();
  *request.mutable_registrations(4)->mutable_instance() = request.registrations(2).instance();
  request.mutable_registrations(4)->mutable_instance()->mutable_key()->set_namespace_("default");

  EXPECT_TRUE(CheckCall(request).ok());
  const std::vector<absl::Status> statuses = StatusesOf(request);
  ASSERT_EQ(statuses.size(), 5u);
  EXPECT_TRUE(statuses[0].ok());
  ExpectInvalid(statuses[1], "registrations[1].instance.key.service", "is required");
  EXPECT_TRUE(statuses[2].ok());
  ExpectInvalid(statuses[3], "registrations[3].instance.port", "70000 is not in 1..65535");
  ExpectInvalid(statuses[4], "registrations[4].instance.key",
                "default/orders/2 is in registrations[2] already");
}

TEST(Validation, ThereIsAlwaysANextGeneration) {
  const std::string wrong = "is not in 0..4611686018427387904";
  for (const uint64_t generation : {kMaxGeneration, kMaxGeneration + 1, ~uint64_t{0}}) {
    RegisterRequest registers;
    *registers.add_registrations()->mutable_instance() = Valid();
    registers.mutable_registrations(0)->set_generation(generation);
    UnregisterRequest unregisters;
    *unregisters.add_deregistrations()->mutable_key() = Valid().key();
    unregisters.mutable_deregistrations(0)->set_generation(generation);
    SubscribeRequest subscribes;
    subscribes.set_generation(generation);
    UnsubscribeRequest unsubscribes;
    unsubscribes.set_session_id("s");
    unsubscribes.set_subscription_id("x");
    unsubscribes.set_generation(generation);
    if (generation <= kMaxGeneration) {
      EXPECT_TRUE(StatusesOf(registers)[0].ok());
      EXPECT_TRUE(StatusesOf(unregisters)[0].ok());
      EXPECT_TRUE(ValidateSubscribe(subscribes).ok());
      EXPECT_TRUE(ValidateUnsubscribe(unsubscribes).ok());
      continue;
    }
    ExpectInvalid(StatusesOf(registers)[0], "registrations[0].generation", wrong);
    ExpectInvalid(StatusesOf(unregisters)[0], "deregistrations[0].generation", wrong);
    ExpectInvalid(ValidateSubscribe(subscribes), "generation", wrong);
    ExpectInvalid(ValidateUnsubscribe(unsubscribes), "generation", wrong);
  }
}

TEST(Validation, DeregistrationsLikewise) {
  UnregisterRequest request;
  *request.add_deregistrations()->mutable_key() = Valid().key();
  *request.add_deregistrations()->mutable_key() = Valid().key();
  request.add_deregistrations();
  EXPECT_TRUE(CheckCall(request).ok());
  const std::vector<absl::Status> statuses = StatusesOf(request);
  ASSERT_EQ(statuses.size(), 3u);
  EXPECT_TRUE(statuses[0].ok());
  ExpectInvalid(statuses[1], "deregistrations[1].key", "prod/orders/orders-1 is in");
  ExpectInvalid(statuses[2], "deregistrations[2].key.service", "is required");
}

TEST(Validation, BatchTooLargeIsTooLargeAndSaysHowMuchIsAllowed) {
  RegisterRequest request;
  for (int i = 0; i < 4; ++i) *request.add_registrations()->mutable_instance() = Valid();
  EXPECT_TRUE(CheckCall(request, 4).ok());
  const absl::Status status = CheckCall(request, 3);
  EXPECT_EQ(ReasonOf(status), registry::v1::ERROR_REASON_TOO_LARGE);
  EXPECT_EQ(ReasonMetadata(status, "limit").value_or(""), "3");
  EXPECT_EQ(ReasonMetadata(status, "actual").value_or(""), "4");
}

TEST(Validation, CallLevelFields) {
  RegisterRequest request;
  ExpectInvalid(CheckCall(request), "registrations", "is required");
  *request.add_registrations()->mutable_instance() = Valid();
  request.set_session_id("a b");
  ExpectInvalid(CheckCall(request), "session_id", "\"a b\" may hold");
  request.clear_session_id();
  request.set_wait_for(static_cast<registry::v1::IntentState>(9));
  ExpectInvalid(CheckCall(request), "wait_for", "9 is not an IntentState");
}

TEST(Validation, OpenSession) {
  OpenSessionRequest request;
  ExpectInvalid(ValidateOpenSession(request), "incarnation", "is required");
  request.set_incarnation("pod-1");
  EXPECT_TRUE(ValidateOpenSession(request).ok());
  request.mutable_ttl()->set_seconds(-1);
  ExpectInvalid(ValidateOpenSession(request), "ttl", "is negative");
  request.mutable_ttl()->set_seconds(1);
  request.mutable_ttl()->set_nanos(1000000000);
  ExpectInvalid(ValidateOpenSession(request), "ttl", "not a valid Duration");
  request.clear_ttl();
  request.set_client_name("Orders, the big one");
  EXPECT_TRUE(ValidateOpenSession(request).ok());
  request.set_client_name(Repeat("c", 129));
  ExpectInvalid(ValidateOpenSession(request), "client_name", "is 129 characters long");
  request.clear_client_name();
  request.set_incarnation(Repeat("i", 129));
  ExpectInvalid(ValidateOpenSession(request), "incarnation", "is 129 characters long");
}

TEST(Validation, SessionCalls) {
  ExpectInvalid(ValidateKeepAlive({}), "session_id", "is required");
  ExpectInvalid(ValidateCloseSession({}), "session_id", "is required");
  ExpectInvalid(ValidateUnsubscribe({}), "session_id", "is required");
  UnsubscribeRequest request;
  request.set_session_id("s");
  ExpectInvalid(ValidateUnsubscribe(request), "subscription_id", "is required");
  request.set_subscription_id("x");
  EXPECT_TRUE(ValidateUnsubscribe(request).ok());
}

TEST(Validation, Subscribe) {
  SubscribeRequest request;
  EXPECT_TRUE(ValidateSubscribe(request).ok());
  (*request.mutable_selector()->mutable_metadata())["k"] = "v";
  ExpectInvalid(ValidateSubscribe(request), "selector.metadata",
                "is not allowed without a service: services are listed");
  request.mutable_selector()->clear_metadata();
  request.mutable_selector()->set_service("orders");
  EXPECT_TRUE(ValidateSubscribe(request).ok());
  request.set_session_id("s");
  ExpectInvalid(ValidateSubscribe(request), "subscription_id", "is required");
  request.set_subscription_id("one");
  EXPECT_TRUE(ValidateSubscribe(request).ok());
  request.mutable_selector()->add_statuses(static_cast<registry::v1::HealthStatus>(5));
  ExpectInvalid(ValidateSubscribe(request), "selector.statuses[0]", "5 is not a HealthStatus");
  request.mutable_selector()->clear_statuses();
  for (int i = 0; i < 65; ++i) request.mutable_selector()->add_zones("z");
  ExpectInvalid(ValidateSubscribe(request), "selector.zones", "has 65 entries, at most 64");
}

TEST(Validation, List) {
  EXPECT_TRUE(ValidateList({}).ok());
  ListRequest request;
  request.set_page_size(-1);
  ExpectInvalid(ValidateList(request), "page_size", "-1 is negative");
  request.set_page_size(1 << 30);
  EXPECT_TRUE(ValidateList(request).ok());
  request.mutable_selector()->set_namespace_("a b");
  ExpectInvalid(ValidateList(request), "selector.namespace", "\"a b\" may hold");
}

TEST(Canonical, SameMeaningSameBytes) {
  ServiceInstance a = Valid();
  ServiceInstance b = Valid();
  a.mutable_key()->set_namespace_("default");
  b.mutable_key()->clear_namespace_();
  for (int i = 0; i < 40; ++i) (*a.mutable_metadata())[std::to_string(i)] = "v";
  for (int i = 39; i >= 0; --i) (*b.mutable_metadata())[std::to_string(i)] = "v";
  EXPECT_EQ(CanonicalInstance(a), CanonicalInstance(b));
  EXPECT_EQ(CanonicalKey(a.key()), CanonicalKey(b.key()));
  b.set_port(1);
  EXPECT_NE(CanonicalInstance(a), CanonicalInstance(b));
}

TEST(Canonical, KeysRoundTripAndSortAsTheirParts) {
  InstanceKey key;
  const std::string canonical = CanonicalKey(Valid().key());
  ASSERT_TRUE(ParseCanonicalKey(canonical, &key));
  EXPECT_EQ(KeyText(key), "prod/orders/orders-1");
  EXPECT_FALSE(ParseCanonicalKey("prod", &key));
  EXPECT_FALSE(ParseCanonicalKey(canonical + std::string(1, '\0'), &key));

  InstanceKey longer = Valid().key();
  longer.set_service("orders-2");  // '-' sorts below letters, and above NUL
  longer.set_instance_id("a");
  EXPECT_LT(canonical, CanonicalKey(longer));
}

// Digests are kept on disk: these values never change.
TEST(Canonical, DigestIsPinned) {
  EXPECT_EQ(Digest64(""), 0xd12aa45c5fac7608u);
  EXPECT_EQ(Digest64("failback"), 0x95ee4221e9c46d6au);
  EXPECT_EQ(Digest64("a registry that stays"), 0xc6f9fecf649935ddu);
}

}  // namespace
}  // namespace failback
