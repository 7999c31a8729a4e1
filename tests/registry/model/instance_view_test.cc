#include "registry/model/instance_view.h"

#include <string>
#include <tuple>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"

namespace failback {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using registry::v1::ServiceInstance;

// Everything that a view shows, but for the size: a new member has to be added here, or the test of
// its field fails.
auto Shown(const InstanceView& view) {
  std::vector<std::pair<std::string, std::string>> metadata;
  for (const InstanceView::Entry& entry : view.metadata) {
    metadata.emplace_back(entry.key, entry.value);
  }
  return std::tuple(std::string(view.name_space), std::string(view.service),
                    std::string(view.instance_id), std::string(view.address), view.port,
                    view.status, view.weight, std::string(view.zone), metadata, view.persistent,
                    view.instance_count, view.offline);
}

// Sets a field to what is not its default; a message's own fields stay unset.
void Set(const FieldDescriptor* field, Message* message) {
  const Reflection* const reflection = message->GetReflection();
  if (field->is_map()) {
    Message* const entry = reflection->AddMessage(message, field);
    Set(entry->GetDescriptor()->FindFieldByName("key"), entry);
    Set(entry->GetDescriptor()->FindFieldByName("value"), entry);
    return;
  }
  ASSERT_FALSE(field->is_repeated()) << field->full_name() << ": say here how to set it";
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->SetString(message, field, "x");
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->SetUInt32(message, field, 1);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->SetUInt64(message, field, 1);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(message, field, true);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->SetEnumValue(message, field, 1);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      reflection->MutableMessage(message, field);
      return;
    default:
      FAIL() << field->full_name() << ": say here how to set it";
  }
}

// An instance for each field of it and of its key, with that field alone beside a key.
std::vector<std::pair<std::string, ServiceInstance>> WithOneFieldEach() {
  std::vector<std::pair<std::string, ServiceInstance>> all;
  const auto& key = *registry::v1::InstanceKey::descriptor();
  for (int i = 0; i < key.field_count(); ++i) {
    auto& [name, instance] = all.emplace_back();
    name = key.field(i)->full_name();
    Set(key.field(i), instance.mutable_key());
  }
  const auto& type = *ServiceInstance::descriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    if (type.field(i)->number() == ServiceInstance::kKeyFieldNumber) continue;
    auto& [name, instance] = all.emplace_back();
    name = type.field(i)->full_name();
    instance.mutable_key()->set_service("s");
    Set(type.field(i), &instance);
  }
  return all;
}

// The same without that field.
ServiceInstance Without(const std::string& name, const ServiceInstance& instance) {
  ServiceInstance without;
  const bool of_key = name.find(registry::v1::InstanceKey::descriptor()->full_name()) == 0;
  if (!of_key) *without.mutable_key() = instance.key();
  return without;
}

TEST(InstanceViewTest, ShowsEachFieldOfAnInstance) {
  for (const auto& [name, instance] : WithOneFieldEach()) {
    EXPECT_NE(Shown(InstanceView(instance)), Shown(InstanceView(Without(name, instance))))
        << name << " is not in InstanceView";
  }
}

TEST(InstanceViewTest, ShowsTheSameOfAMessageAndOfItsBytes) {
  for (const auto& [name, instance] : WithOneFieldEach()) {
    const std::string bytes = instance.SerializeAsString();
    EncodedInstance encoded;
    ASSERT_TRUE(ReadSentInstance(bytes, &encoded)) << name;
    EXPECT_EQ(Shown(encoded.view), Shown(InstanceView(instance))) << name;
    EXPECT_EQ(encoded.view.bytes, bytes.size());
    std::string canonical(encoded.CanonicalSize(), '\0');
    encoded.WriteCanonical(canonical.data());
    EXPECT_EQ(canonical, CanonicalInstance(instance)) << name;
  }
}

TEST(InstanceViewTest, OfAnOwnerWhatOnlyARegistrySetsIsNotRead) {
  for (const auto& [name, instance] : WithOneFieldEach()) {
    const bool registrys = instance.instance_count() != 0 || instance.has_offline();
    EncodedInstance encoded;
    EXPECT_EQ(ReadInstance(instance.SerializeAsString(), &encoded), !registrys) << name;
  }
}

TEST(InstanceViewTest, AMarkIsReadOnlyAsItIsEncoded) {
  ServiceInstance instance;
  instance.mutable_key()->set_service("s");
  auto& mark = *instance.mutable_offline();
  mark.set_reason("repair");
  mark.set_by("me");
  mark.mutable_time()->set_seconds(1700000000);
  mark.mutable_time()->set_nanos(5);
  const std::string bytes = instance.SerializeAsString();
  EncodedInstance encoded;
  EXPECT_TRUE(ReadSentInstance(bytes, &encoded));
  EXPECT_TRUE(encoded.view.offline);
  for (const std::string_view text : {"repair", "me"}) {
    std::string broken = bytes;
    broken[broken.find(text)] = '\xff';
    EXPECT_FALSE(ReadSentInstance(broken, &encoded)) << text;
  }
  // A field of a later version.
  mark.GetReflection()->MutableUnknownFields(&mark)->AddVarint(15, 1);
  EXPECT_FALSE(ReadSentInstance(instance.SerializeAsString(), &encoded));
}

TEST(InstanceViewTest, TextIsUtf8) {
  ServiceInstance instance;
  instance.mutable_key()->set_service("s");
  instance.set_zone("zürich");
  (*instance.mutable_metadata())["key"] = "value";
  EXPECT_TRUE(IsText(InstanceView(instance)));
  const std::string bytes = instance.SerializeAsString();
  for (const std::string_view text : {"rich", "key", "value"}) {
    std::string broken = bytes;
    broken[broken.find(text)] = '\xff';
    EncodedInstance encoded;
    ASSERT_TRUE(ReadInstance(broken, &encoded));
    EXPECT_FALSE(IsText(encoded.view)) << text;
  }
}

}  // namespace
}  // namespace failback
