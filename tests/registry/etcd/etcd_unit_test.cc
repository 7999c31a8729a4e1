// The parts of EtcdRegistry that need no etcd: names of keys, values, errors, the URI.

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "registry/client/grpc_registry.h"
#include "registry/etcd/error.h"
#include "registry/etcd/etcd_uri.h"
#include "registry/etcd/grpc_client.h"
#include "registry/etcd/keys.h"
#include "registry/etcd/stored.h"
#include "registry/etcd/txn.h"
#include "registry/etcd/txn_encoder.h"
#include "registry/failback/status_policy.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "tests/registry/registry_calls.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using etcd::Keys;

std::string Canonical(const std::string& ns, const std::string& service, const std::string& id) {
  InstanceKey key;
  key.set_namespace_(ns);
  key.set_service(service);
  key.set_instance_id(id);
  return CanonicalKey(key);
}

TEST(KeysTest, AreReadableAndComeBack) {
  const Keys keys("/failback");
  const std::string plain = Canonical("default", "orders", "orders-1");
  EXPECT_EQ(keys.Instance(plain), "/failback/v1/default/orders/orders-1");
  EXPECT_EQ(keys.ParseInstance(keys.Instance(plain)), plain);
  const std::string odd = Canonical("a.b", "team/orders", "10.0.0.1:80/%2F%");
  EXPECT_EQ(keys.Instance(odd), "/failback/v1/a.b/team%2Forders/10.0.0.1:80%2F%252F%25");
  EXPECT_EQ(keys.ParseInstance(keys.Instance(odd)), odd);
  EXPECT_EQ(keys.Mark(odd), keys.Instance(odd) + " offline");
  EXPECT_EQ(keys.ParseMark(keys.Mark(odd)), odd);
  EXPECT_FALSE(keys.ParseInstance(keys.Mark(odd)).has_value());
  EXPECT_FALSE(keys.ParseMark(keys.Instance(odd)).has_value());
}

// Between an instance and its mark nothing fits.
TEST(KeysTest, AMarkComesRightBehindItsInstance) {
  const Keys keys("/p");
  const std::string canonical = Canonical("n", "s", "i");
  const etcd::KeyRange range = keys.InstanceWithMark(canonical);
  EXPECT_EQ(range.begin, keys.Instance(canonical));
  EXPECT_LT(range.begin, keys.Mark(canonical));
  EXPECT_LT(keys.Mark(canonical), range.end);
  for (char next = '!'; next <= '~'; ++next) {
    const std::string longer = keys.Instance(Canonical("n", "s", std::string("i") + next));
    EXPECT_FALSE(range.begin <= longer && longer < range.end) << next;
  }
}

// A client of the server gets the error that etcd does not answer, and not its own deadline.
TEST(ClientTest, GivesUpBeforeAClientOfTheServerDoes) {
  const etcd::GrpcClient::Options options;
  EXPECT_LE(options.call_timeout, GrpcRegistryOptions().call_timeout - absl::Milliseconds(500));
  EXPECT_GT(options.call_timeout, 2 * options.attempt_timeout + options.round_delay);
}

// Whatever the lengths and numbers, etcd reads what it would read from the messages.
TEST(TxnEncoderTest, WritesWhatTheMessageWould) {
  for (const size_t size : {0, 1, 127, 128, 20000}) {
    for (const int64_t number : {int64_t{0}, int64_t{1}, int64_t{300}, int64_t{1} << 62}) {
      SCOPED_TRACE(absl::StrCat(size, " bytes, ", number));
      const std::string key = "/k/" + std::string(size, 'k');
      const std::string value(size, 'v');
      etcd::TxnEncoder encoder;
      encoder.CompareCreated("session", number);
      encoder.GetElse("session");
      encoder.CompareModified(key, number);
      encoder.CompareLease(key, number);
      encoder.Put(key, value.substr(0, size / 3), value.substr(size / 3), number);
      encoder.Delete(key);
      EXPECT_EQ(encoder.operations(), 2);
      etcdserverpb::TxnRequest wished;
      etcd::CompareCreated("session", number, &wished);
      etcd::CompareModified(key, number, &wished);
      etcd::CompareLease(key, number, &wished);
      etcd::AddPut(key, value, number, wished.mutable_success());
      etcd::AddDelete(key, wished.mutable_success());
      etcd::AddGet("session", wished.mutable_failure());
      etcdserverpb::TxnRequest read;
      ASSERT_TRUE(read.ParseFromString(std::move(encoder).Take()));
      EXPECT_EQ(read.SerializeAsString(), wished.SerializeAsString());
      // Take leaves it empty. NOLINTNEXTLINE(bugprone-use-after-move)
      EXPECT_EQ(encoder.operations(), 0);
    }
  }
}

TEST(KeysTest, WhatIsNoInstancesKeyIsRefused) {
  const Keys keys("/p");
  for (const std::string key :
       {"", "/p/v1/", "/p/v1/a/b", "/p/v1/a/b/c/d", "/p/v1/a/b/", "/p/v1/a//c",
        "/p/v1/.session/x/y", "/p/v1/a/b/%", "/p/v1/a/b/%2f", "/p/v1/a/b/%41", "/q/v1/a/b/c"}) {
    EXPECT_FALSE(keys.ParseInstance(key).has_value()) << key;
  }
}

TEST(KeysTest, RangesHoldTheirKeysAndNoOthers) {
  const Keys keys("");
  const auto in = [](const etcd::KeyRange& range, const std::string& key) {
    return range.begin <= key && key < range.end;
  };
  const std::string a = keys.Instance(Canonical("n", "s", "~~~"));
  EXPECT_TRUE(in(keys.Service(std::string("n\0s", 3)), a));
  EXPECT_TRUE(in(keys.Namespace("n"), a));
  EXPECT_TRUE(in(keys.AllInstances(), a));
  EXPECT_FALSE(in(keys.Service(std::string("n\0s", 3)), keys.Instance(Canonical("n", "s-1", "x"))));
  EXPECT_FALSE(in(keys.Namespace("n"), keys.Instance(Canonical("n1", "s", "x"))));
  for (const std::string& key :
       {keys.Session("x"), keys.StoreId(), keys.Epoch(), keys.Incarnation("x"),
        keys.Persistent("x", Canonical("n", "s", "i"))}) {
    EXPECT_FALSE(in(keys.AllInstances(), key)) << key;
  }
  EXPECT_EQ(keys.ParsePersistent("a/b", keys.Persistent("a/b", Canonical("n", "s", "i"))),
            Canonical("n", "s", "i"));
}

TEST(StoredTest, TheValueIsAServiceInstanceToo) {
  const ServiceInstance instance = MakeInstance("s", "1", 8080);
  etcd::StoredRecord record;
  etcd::StoredRecord::SetFence({7, 3, 99, true}, record.meta.mutable_fence());
  record.meta.set_owner("a");
  record.instance = Blob(CanonicalInstance(instance));
  const std::string value = etcd::EncodeStored(record);
  ServiceInstance parsed;
  ASSERT_TRUE(parsed.ParseFromString(value));
  EXPECT_EQ(parsed.port(), 8080u);
  EXPECT_EQ(parsed.key().instance_id(), "1");
  const auto again = etcd::DecodeStored(CanonicalKey(instance.key()), value);
  EXPECT_EQ(again.instance, record.instance);
  EXPECT_EQ(again.fence().rank, 7u);
  EXPECT_EQ(again.fence().generation, 3u);
  EXPECT_EQ(again.fence().digest, 99u);
  EXPECT_TRUE(again.fence().registers);
  EXPECT_EQ(again.meta.owner(), "a");
}

TEST(StoredTest, TombstonesAndForeignValues) {
  const std::string canonical = Canonical("default", "s", "1");
  etcd::StoredRecord tombstone;
  etcd::StoredRecord::SetFence({7, 4, 0, false}, tombstone.meta.mutable_fence());
  const auto buried = etcd::DecodeStored(canonical, etcd::EncodeStored(tombstone));
  EXPECT_FALSE(buried.instance);
  EXPECT_EQ(buried.fence().generation, 4u);
  // A plain instance counts, without a fence; that of another key, or rubbish, does not.
  const std::string plain = MakeInstance("s", "1").SerializeAsString();
  EXPECT_TRUE(etcd::DecodeStored(canonical, plain).instance);
  EXPECT_EQ(etcd::DecodeStored(canonical, plain).fence().rank, 0u);
  EXPECT_FALSE(etcd::DecodeStored(Canonical("default", "s", "2"), plain).instance);
  for (const std::string& value : {std::string(), std::string("rubbish"), std::string(1, '\0'),
                                   etcd::EncodeStored(tombstone).substr(0, 3)}) {
    EXPECT_FALSE(etcd::DecodeStored(canonical, value).instance);
    EXPECT_EQ(etcd::DecodeStored(canonical, value).fence().rank, 0u);
  }
}

// Written by an earlier version, or by hand: its neighbours stay readable.
TEST(StoredTest, TextThatNoClientCanReadIsNoInstance) {
  ServiceInstance instance = MakeInstance("s", "1");
  etcd::StoredRecord record;
  etcd::StoredRecord::SetFence({7, 3, 99, true}, record.meta.mutable_fence());
  instance.set_zone("\xe9");
  record.instance = Blob(CanonicalInstance(instance));
  const auto read = etcd::DecodeStored(CanonicalKey(instance.key()), etcd::EncodeStored(record));
  EXPECT_FALSE(read.instance);
  EXPECT_EQ(read.fence().generation, 3u) << "its fence holds";
}

TEST(ErrorTest, EtcdsErrorsSayWhatToDoNext) {
  struct Case {
    grpc::StatusCode code;
    const char* text;
    etcd::Error error;
    absl::StatusCode becomes;
    registry::v1::ErrorReason reason;
    NextStep next;
    bool transient;
  };
  using E = etcd::Error;
  constexpr auto kNone = registry::v1::ERROR_REASON_UNSPECIFIED;
  constexpr auto kUpstream = registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE;
  const Case cases[] = {
      {grpc::UNAVAILABLE, "etcdserver: no leader", E::kUnavailable, absl::StatusCode::kUnavailable,
       kUpstream, NextStep::kRetry, true},
      {grpc::UNAVAILABLE, "etcdserver: request timed out", E::kUnavailable,
       absl::StatusCode::kUnavailable, kUpstream, NextStep::kRetry, true},
      {grpc::UNAVAILABLE, "Socket closed", E::kNone, absl::StatusCode::kUnavailable, kUpstream,
       NextStep::kRetry, true},
      {grpc::RESOURCE_EXHAUSTED, "etcdserver: too many requests", E::kTooManyRequests,
       absl::StatusCode::kResourceExhausted, registry::v1::ERROR_REASON_OVERLOADED,
       NextStep::kRetry, true},
      {grpc::RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", E::kNoSpace,
       absl::StatusCode::kUnavailable, registry::v1::ERROR_REASON_STORE_READ_ONLY, NextStep::kRetry,
       false},
      {grpc::UNAUTHENTICATED, "etcdserver: invalid auth token", E::kInvalidToken,
       absl::StatusCode::kUnauthenticated, kNone, NextStep::kRetry, false},
      {grpc::INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password",
       E::kAuthFailed, absl::StatusCode::kUnauthenticated, kNone, NextStep::kRetry, false},
      {grpc::PERMISSION_DENIED, "etcdserver: permission denied", E::kPermissionDenied,
       absl::StatusCode::kPermissionDenied, kNone, NextStep::kPark, false},
      {grpc::INVALID_ARGUMENT, "etcdserver: request is too large", E::kTooLarge,
       absl::StatusCode::kInvalidArgument, registry::v1::ERROR_REASON_TOO_LARGE, NextStep::kPark,
       false},
      {grpc::NOT_FOUND, "etcdserver: requested lease not found", E::kLeaseNotFound,
       absl::StatusCode::kNotFound, kNone, NextStep::kPark, false},
      {grpc::OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", E::kCompacted,
       absl::StatusCode::kOutOfRange, kNone, NextStep::kPark, false},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.text);
    const absl::Status status = etcd::FromEtcd(grpc::Status(test.code, test.text));
    EXPECT_EQ(etcd::ErrorOf(status), test.error);
    // What to do may follow.
    EXPECT_EQ(status.message().substr(0, 6 + std::string(test.text).size()),
              absl::StrCat("etcd: ", test.text));
    EXPECT_EQ(status.code(), test.becomes);
    EXPECT_EQ(ReasonOf(status), test.reason);
    EXPECT_EQ(DecideNextStep(OperationKind::kRegister, status), test.next);
    EXPECT_EQ(etcd::IsTransient(status), test.transient);
  }
}

TEST(EtcdUriTest, NamesMembersPrefixAndUser) {
  const TempDir dir;
  const std::string password = dir.Write("password", "secret\n");
  const auto options = ParseEtcdUri(
      absl::StrCat("etcd://h1:1,h2:2,[::1]:3/a/b/?user=u&password_file=", password), nullptr);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->client.endpoints, (std::vector<std::string>{"h1:1", "h2:2", "[::1]:3"}));
  EXPECT_EQ(options->prefix, "/a/b");
  EXPECT_EQ(options->client.user, "u");
  EXPECT_EQ(options->client.password, "secret");
  EXPECT_EQ(options->client.channel.security, nullptr);
  EXPECT_EQ(ParseEtcdUri("etcd://h:1", nullptr)->prefix, "/failback");
  EXPECT_NE(ParseEtcdUri("etcd://h:1?tls=true", nullptr)->client.channel.security, nullptr);
}

TEST(EtcdUriTest, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"etcd:h:1", "'//'"},
      {"etcd://h", "'h'"},
      {"etcd://", "''"},
      {"etcd://h:1,h:1", "'h:1' is there twice"},
      {"etcd://h:1?x=1", "option 'x' is not known"},
      {"etcd://h:1?user=u", "user and password_file belong together"},
      {"etcd://h:1?cert=/c", "cert and key belong together"},
      {"etcd://h:1?ca=/nonexistent", "'/nonexistent' cannot be read"},
      {"etcd://h:1?tls=maybe", "tls is 'maybe'"},
      {"etcd://h:1?server_name=n", "say tls=true"},
      {"etcd://h:1?user=", "user has no value"},
  };
  for (const auto& [uri, what] : cases) {
    const auto options = ParseEtcdUri(uri, nullptr);
    ASSERT_FALSE(options.ok()) << uri;
    EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(options.status().message().find(what), std::string::npos)
        << uri << ": " << options.status();
  }
}

}  // namespace
}  // namespace failback
