#include "registry/failback/register_encoder.h"

#include <string>
#include <string_view>
#include <utility>

#include "gtest/gtest.h"
#include "registry/encoded_registrar.h"
#include "registry/model/canonical.h"
#include "registry/model/encoded_batch.h"

namespace failback {
namespace {

using registry::v1::RegisterRequest;
using registry::v1::ServiceInstance;

ServiceInstance Instance(const std::string& id, size_t payload) {
  ServiceInstance instance;
  instance.mutable_key()->set_namespace_("n");
  instance.mutable_key()->set_service("s");
  instance.mutable_key()->set_instance_id(id);
  instance.set_address("10.0.0.1");
  instance.set_port(80);
  (*instance.mutable_metadata())["b"] = std::string(payload, 'x');
  (*instance.mutable_metadata())["a"] = "1";
  return instance;
}

TEST(RegisterEncoderTest, WritesWhatTheMessageWouldAndWhatStoresTake) {
  for (const char* session : {"", "a-session"}) {
    for (const uint64_t generation : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 62}) {
      RegisterRequest wished;
      wished.set_session_id(session);
      RegisterEncoder encoder;
      encoder.SetSession(session);
      for (const size_t payload : {0, 100, 127, 128, 1000}) {
        auto* item = wished.add_registrations();
        *item->mutable_instance() = Instance(std::to_string(payload), payload);
        item->set_generation(generation);
        encoder.Add(CanonicalInstance(item->instance()), generation);
      }
      RegisterRequest read;
      ASSERT_TRUE(read.ParseFromString(encoder.bytes()));
      EXPECT_EQ(read.SerializeAsString().size(), wished.SerializeAsString().size());
      EXPECT_EQ(read.session_id(), session);
      ASSERT_EQ(read.registrations_size(), wished.registrations_size());
      for (int i = 0; i < read.registrations_size(); ++i) {
        EXPECT_EQ(CanonicalInstance(read.registrations(i).instance()),
                  CanonicalInstance(wished.registrations(i).instance()));
        EXPECT_EQ(read.registrations(i).generation(), generation);
      }
      const auto spelled = SpellEncodedRegister(encoder.bytes(), 10);
      ASSERT_TRUE(spelled.has_value()) << "the short way is not taken";
      EXPECT_EQ(spelled->session_id, session);
      EXPECT_EQ(spelled->batch.intents.size(), 5u);
    }
  }
}

// Takes what is not empty, and answers with messages.
class Plain final : public EncodedRegistrar {
 public:
  bool RegisterEncoded(std::string_view request, Results /*results*/,
                       Callback<RegisterResponse>* done) override {
    if (request.empty()) return false;
    if (request == "bad") {
      std::move (*done)(absl::AbortedError("bad"));
      return true;
    }
    RegisterResponse response;
    response.set_revision(7);
    response.add_results()->set_generation(3);
    std::move (*done)(std::move(response));
    return true;
  }
};

TEST(EncodedRegistrarTest, WhoAnswersWithMessagesAnswersInBytesToo) {
  Plain plain;
  absl::StatusOr<std::string> answer = absl::DataLossError("no answer");
  const auto ask = [&](std::string_view request) {
    Callback<std::string> done = [&](auto bytes) { answer = std::move(bytes); };
    const bool taken =
        plain.RegisterToBytes(request, EncodedRegistrar::Results::kUnlessAsAsked, &done);
    EXPECT_EQ(taken, !done) << "what is not taken still has its callback";
    return taken;
  };
  EXPECT_FALSE(ask(""));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(ask("good"));
  RegisterResponse response;
  ASSERT_TRUE(answer.ok() && response.ParseFromString(*answer));
  EXPECT_EQ(response.revision(), 7u);
  EXPECT_EQ(response.results_size(), 1);
  EXPECT_TRUE(ask("bad"));
  EXPECT_EQ(answer.status(), absl::AbortedError("bad"));
}

}  // namespace
}  // namespace failback
