// Shapes of messages that are small, and were or would be much work: each at its full length and at
// half of it, at every edge that takes such bytes. See edges.h; what is counted are branches.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "registry/model/validation.h"
#include "registry/registry.h"
#include "tests/fuzz/work/edges.h"
#include "tests/util/instances.h"
#include "tests/util/wire_field.h"

namespace failback {
namespace {

struct Shape {
  const char* name;
  Edge edge;
  std::function<std::string(int)> make;
  int count = 100000;
};

RegisterRequest OneInstance() {
  RegisterRequest request;
  request.set_session_id("s");
  *request.add_registrations()->mutable_instance() = MakeInstance("orders", "1", 1);
  return request;
}

// An instance with `fields` after all others, in a Register.
std::string RegisterWith(const std::string& fields) {
  RegisterRequest request = OneInstance();
  const std::string instance = request.registrations(0).instance().SerializeAsString() + fields;
  request.clear_registrations();
  return request.SerializeAsString() +
         WireField(RegisterRequest::kRegistrationsFieldNumber,
                   WireField(registry::v1::Registration::kInstanceFieldNumber, instance));
}

std::string Entry(int field, const std::string& key) {
  return WireField(field, WireField(1, key) + WireField(2, "v"));
}

std::string Many(int count, const std::function<std::string(int)>& make) {
  std::string all;
  for (int i = 0; i < count; ++i) all += make(i);
  return all;
}

std::vector<Shape> Shapes() {
  const int metadata = ServiceInstance::kMetadataFieldNumber;
  const int selected = Selector::kMetadataFieldNumber;
  const int unknown = 999;
  const auto list = [](const std::string& selector) {
    return WireField(ListRequest::kSelectorFieldNumber, selector);
  };
  return {
      {"metadata in falling order", Edge::kRegister,
       [=](int n) {
         return RegisterWith(
             Many(n, [&](int i) { return Entry(metadata, absl::StrFormat("%06d", n - i)); }));
       }},
      {"metadata in falling order, within the bytes of an instance", Edge::kRegister,
       [=](int n) {
         return RegisterWith(
             Many(n, [&](int i) { return Entry(metadata, absl::StrFormat("%04d", n - i)); }));
       },
       4000},
      {"one key of metadata many times", Edge::kRegister,
       [=](int n) { return RegisterWith(Many(n, [&](int) { return Entry(metadata, "k"); })); }},
      {"unknown fields", Edge::kRegister,
       [=](int n) { return RegisterWith(Many(n, [&](int) { return WireField(unknown, ""); })); }},
      {"empty registrations", Edge::kRegister,
       [](int n) { return Many(n, [](int) { return WireField(2, ""); }); }},
      {"one registration many times", Edge::kRegister,
       [](int n) {
         RegisterRequest request = OneInstance();
         const auto item = request.registrations(0);
         while (request.registrations_size() < n) *request.add_registrations() = item;
         return request.SerializeAsString();
       },
       1000},
      {"deep nesting", Edge::kRegister,
       [](int n) {
         std::string bytes;
         for (int i = 0; i < n; ++i) bytes = WireField(2, bytes);
         return bytes;
       },
       2000},
      {"groups", Edge::kRegister,
       [](int n) { return std::string(static_cast<size_t>(n), '\x1b'); }},
      {"one deregistration many times", Edge::kUnregister,
       [](int n) {
         UnregisterRequest request;
         while (request.deregistrations_size() < n) {
           request.add_deregistrations()->mutable_key()->set_service("orders");
         }
         return request.SerializeAsString();
       }},
      {"states", Edge::kList,
       [=](int n) {
         return list(
             WireField(Selector::kStatusesFieldNumber, std::string(static_cast<size_t>(n), 1)));
       }},
      {"zones", Edge::kSubscribe,
       [](int n) {
         SubscribeRequest request;
         while (request.selector().zones_size() < n) {
           request.mutable_selector()->add_zones(absl::StrCat(request.selector().zones_size()));
         }
         return request.SerializeAsString();
       }},
      {"metadata of a filter", Edge::kList,
       [=](int n) {
         return list(
             Many(n, [&](int i) { return Entry(selected, absl::StrFormat("%06d", n - i)); }));
       }},
      {"names of an operator's filter", Edge::kAdmin,
       [](int n) { return Many(n, [](int i) { return WireField(1 + i % 8, "x"); }); }},
      {"ids to try again", Edge::kAgent,
       [](int n) { return WireField(1, Many(n, [](int) { return WireField(1, "x"); })); }},
      {"unknown fields of a health check", Edge::kHealth,
       [=](int n) { return Many(n, [&](int) { return WireField(unknown, ""); }); }},
      {"a name of nothing but separators", Edge::kXdsName,
       [](int n) { return std::string(static_cast<size_t>(n), '/'); }},
      {"labels of one byte, again and again", Edge::kDnsQuery,
       [](int n) {
         std::string query("\0\1\0\0\0\1\0\0\0\0\0\0", 12);
         for (int i = 0; i < n; ++i) query += "\1a";
         return query;
       }},
      {"a page token", Edge::kPageToken,
       [](int n) { return std::string(static_cast<size_t>(n), 'A'); }},
      {"a text of quotes in the log", Edge::kLogLine,
       [](int n) { return std::string(static_cast<size_t>(n), '"'); }},
  };
}

TEST(HostileShapesTest, WorkIsBoundedByBytes) {
  for (const Shape& shape : Shapes()) {
    for (const int count : {shape.count / 2, shape.count}) {
      const std::string bytes = shape.make(count);
      const int64_t work = WorkAt(shape.edge, bytes);
      RecordProperty(shape.name, absl::StrCat(work));
      EXPECT_LE(work, MostWork(bytes.size()))
          << shape.name << ", " << count << " of them, " << bytes.size() << " bytes";
      EXPECT_GT(work, 0) << shape.name << ": not counted";
    }
  }
}

// The largest that is valid is taken.
TEST(HostileShapesTest, TheLargestValidRequestsAreWithinBounds) {
  RegisterRequest request = OneInstance();
  auto& metadata = *request.mutable_registrations(0)->mutable_instance()->mutable_metadata();
  for (int i = 0; i < kMaxMetadataEntries; ++i) metadata[absl::StrCat(i)] = std::string(200, 'x');
  while (request.registrations_size() < static_cast<int>(kDefaultMaxBatch)) {
    auto* const next = request.add_registrations();
    *next = request.registrations(0);
    next->mutable_instance()->mutable_key()->set_instance_id(
        absl::StrCat(request.registrations_size()));
  }
  const std::string bytes = request.SerializeAsString();
  EXPECT_EQ(TooMuchWork(Edge::kRegister, bytes), "");
}

}  // namespace
}  // namespace failback
