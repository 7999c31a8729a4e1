#include "registry/model/canonical.h"

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using registry::v1::InstanceKey;
using registry::v1::ServiceInstance;

std::string Sorted(const ServiceInstance& instance) {
  std::string out;
  google::protobuf::io::StringOutputStream stream(&out);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  instance.SerializeToCodedStream(&coded);
  coded.Trim();
  return out;
}

TEST(Canonical, AnInstanceIsSortedAndItsNamespaceIsExplicit) {
  std::mt19937 random(20261121);
  const auto text = [&](int most) { return std::string(random() % (most + 1), 'x'); };
  for (int round = 0; round < 3000; ++round) {
    ServiceInstance instance;
    if (round > 0) {
      instance.mutable_key()->set_service(text(200));
      instance.mutable_key()->set_instance_id(text(200));
    }
    if (round % 3 == 1) instance.mutable_key()->set_namespace_("n" + text(60));
    instance.set_address(text(200));
    instance.set_port(random() % 70000);
    instance.set_status(static_cast<registry::v1::HealthStatus>(random() % 4));
    if (random() % 2 == 0) instance.set_weight(random() % 200);
    instance.set_zone(text(20));
    instance.set_persistent(random() % 2 == 0);
    for (size_t i = random() % 8; i > 0; --i) {
      (*instance.mutable_metadata())["k" + std::to_string(random() % 100)] = text(300);
    }
    ServiceInstance with_namespace = instance;
    if (with_namespace.key().namespace_().empty())
      with_namespace.mutable_key()->set_namespace_("default");
    const std::string bytes = CanonicalInstance(instance);
    ASSERT_EQ(bytes, Sorted(with_namespace)) << instance.DebugString();
    ASSERT_EQ(bytes, CanonicalInstance(with_namespace));
    ServiceInstance parsed;
    ASSERT_TRUE(parsed.ParseFromString(bytes));
    ASSERT_EQ(CanonicalKey(parsed.key()), CanonicalKey(instance.key()));
  }
}

TEST(Canonical, KeysSortByTheirPartsAndParseBack) {
  InstanceKey key;
  key.set_service("orders");
  key.set_instance_id("1");
  EXPECT_EQ(CanonicalKey(key), std::string("default\0orders\0001", 16));
  InstanceKey back;
  ASSERT_TRUE(ParseCanonicalKey(CanonicalKey(key), &back));
  EXPECT_EQ(KeyText(back), "default/orders/1");
  EXPECT_FALSE(ParseCanonicalKey("orders", &back));
  EXPECT_FALSE(ParseCanonicalKey(std::string("a\0b\0c\0d", 7), &back));
}

// The algorithm byte by byte: what is on disk must be found again by every build.
uint64_t SlowDigest(const std::string& bytes) {
  constexpr uint64_t kMultiplier = 0xc6a4a7935bd1e995u;
  uint64_t hash = 0x5f61696c6261636bu ^ (bytes.size() * kMultiplier);
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word = 0;
    for (size_t i = 8; i-- > 0;) word = word << 8 | static_cast<unsigned char>(bytes[at + i]);
    word *= kMultiplier;
    word ^= word >> 47;
    word *= kMultiplier;
    hash = (hash ^ word) * kMultiplier;
  }
  if (at < bytes.size()) {
    uint64_t word = 0;
    for (size_t i = bytes.size(); i-- > at;)
      word = word << 8 | static_cast<unsigned char>(bytes[i]);
    hash = (hash ^ word) * kMultiplier;
  }
  hash = (hash ^ (hash >> 47)) * kMultiplier;
  return hash ^ (hash >> 47);
}

TEST(Canonical, TheDigestIsTheSameEverAfter) {
  std::mt19937 random(7);
  std::string bytes;
  for (int size = 0; size < 300; ++size) {
    EXPECT_EQ(Digest64(bytes), SlowDigest(bytes)) << size;
    bytes.push_back(static_cast<char>(random()));
  }
}

TEST(CanonicalKey, ItsNamesAndItsMessageAreReadFromIt) {
  const std::vector<std::vector<std::string>> keys = {{"prod", "orders", "1"},
                                                      {"prod", "orders", ""},
                                                      {"prod", "", ""},
                                                      {"", "", std::string(300, 'i')}};
  for (const auto& names : keys) {
    const std::string key = names[0] + '\0' + names[1] + '\0' + names[2];
    const KeyNames split = SplitCanonicalKey(key);
    EXPECT_EQ(split.name_space, names[0]);
    EXPECT_EQ(split.service, names[1]);
    EXPECT_EQ(split.instance_id, names[2]);
    registry::v1::InstanceKey message;
    message.set_namespace_(names[0]);
    message.set_service(names[1]);
    message.set_instance_id(names[2]);
    std::string encoded = "before ";
    AppendEncodedKey(key, &encoded);
    EXPECT_EQ(encoded, "before " + message.SerializeAsString());
    EXPECT_EQ(EncodedKeySize(key), message.ByteSizeLong());
  }
  EXPECT_EQ(SplitCanonicalKey("no key").name_space, "no key");
  EXPECT_EQ(SplitCanonicalKey("no key").instance_id, "");
}

}  // namespace
}  // namespace failback
