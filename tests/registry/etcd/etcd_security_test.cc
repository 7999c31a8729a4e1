// User and password, tokens that end, permissions, and TLS with client certificates, on a real
// etcd.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

class EtcdAuthTest : public testing::Test {
 protected:
  explicit EtcdAuthTest(EtcdCluster::Options etcd = {})
      : etcd_(std::move(etcd)), timer_(NewTimer(kTestTick)) {
    const std::vector<std::vector<std::string>> setup = {
        {"user", "add", "root:root"},
        {"user", "grant-role", "root", "root"},
        {"user", "add", "failback:right"},
        {"role", "add", "failback"},
        {"role", "grant-permission", "failback", "--prefix=true", "readwrite", "/mine/"},
        {"user", "grant-role", "failback", "failback"},
    };
    for (const auto& command : setup) {
      const RunResult result = etcd_.Ctl(command);
      EXPECT_EQ(result.status, 0) << result.err;
    }
  }

  void EnableAuth() {
    const RunResult result = etcd_.Ctl({"--user", "root:root", "auth", "enable"});
    EXPECT_EQ(result.status, 0) << result.err;
  }

  std::unique_ptr<EtcdRegistry> Connect(const std::string& prefix, const std::string& password) {
    EtcdRegistry::Options options = EtcdTestOptions(etcd_, prefix, timer_.get());
    options.client.user = password.empty() ? "" : "failback";
    options.client.password = password;
    return std::make_unique<EtcdRegistry>(std::move(options));
  }

  static absl::StatusOr<OpenSessionResponse> Open(EtcdRegistry& registry) {
    OpenSessionRequest request;
    request.set_incarnation("a");
    request.mutable_ttl()->set_seconds(60);
    return CallAndWait<OpenSessionResponse>(registry, &Registry::OpenSession, request);
  }

  static absl::Status Register(EtcdRegistry& registry, const std::string& session,
                               const std::string& id) {
    RegisterRequest request;
    request.set_session_id(session);
    *request.add_registrations()->mutable_instance() = MakeInstance("s", id);
    return CallAndWait<RegisterResponse>(registry, &Registry::Register, request).status();
  }

  static absl::Status Renew(EtcdRegistry& registry, const std::string& session) {
    KeepAliveRequest request;
    request.set_session_id(session);
    return CallAndWait<KeepAliveResponse>(registry, &Registry::KeepAlive, request).status();
  }

  static std::unique_ptr<SubscribeStream> Follow(EtcdRegistry& registry, const std::string& service,
                                                 std::shared_ptr<FakeSubscriber> subscriber) {
    SubscribeRequest request;
    request.mutable_selector()->set_service(service);
    return registry.Subscribe(request, std::move(subscriber));
  }

  EtcdCluster etcd_;
  const std::unique_ptr<HashedWheelTimer> timer_;
};

TEST_F(EtcdAuthTest, WithTheRightPasswordAndOnlyBelowItsPrefix) {
  // Before authentication is switched on a user does no harm.
  const auto early = Connect("/mine", "right");
  EXPECT_TRUE(Open(*early).ok());
  EnableAuth();
  EXPECT_EQ(Open(*early).status(), absl::OkStatus()) << "a token is fetched when one is asked for";
  const auto registry = Connect("/mine", "right");
  const auto opened = Open(*registry);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(Register(*registry, opened->session_id(), "1"), absl::OkStatus());
  const auto elsewhere = Connect("/elsewhere", "right");
  EXPECT_EQ(Open(*elsewhere).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(EtcdAuthTest, WrongAndMissingPasswordsAreUnauthenticated) {
  EnableAuth();
  const auto wrong = Connect("/mine", "wrong");
  EXPECT_EQ(Open(*wrong).status().code(), absl::StatusCode::kUnauthenticated);
  const auto none = Connect("/mine", "");
  EXPECT_EQ(Open(*none).status().code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(EtcdAuthTest, ATokenThatHasEndedIsRenewedByCallsAndWatches) {
  EnableAuth();
  const auto registry = Connect("/mine", "right");
  const auto opened = Open(*registry);
  ASSERT_TRUE(opened.ok()) << opened.status();
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = Follow(*registry, "s", subscriber);
  for (int round = 0; round < 2; ++round) {
    // A member that starts again knows no token of before.
    etcd_.Kill(0);
    etcd_.Start(0);
    EXPECT_TRUE(Eventually(
        [&] { return Register(*registry, opened->session_id(), absl::StrCat(round)).ok(); }));
    EXPECT_TRUE(
        Eventually([&] { return subscriber->ids().size() == static_cast<size_t>(round) + 1; }));
    // A new watch, on a stream that may have been opened with an old token.
    auto late = std::make_shared<FakeSubscriber>();
    const auto late_stream = Follow(*registry, absl::StrCat("t", round), late);
    EXPECT_TRUE(Eventually([&] { return !late->events().empty(); }));
    EXPECT_TRUE(Eventually([&] { return Renew(*registry, opened->session_id()).ok(); }));
  }
  EXPECT_FALSE(subscriber->ended().has_value());
}

// Tokens of a second, however they are used.
class EtcdShortTokenTest : public EtcdAuthTest {
 protected:
  EtcdShortTokenTest() : EtcdShortTokenTest(TempDir()) {}

 private:
  explicit EtcdShortTokenTest(const TempDir& dir) : EtcdAuthTest(ShortTokens(dir)) {}

  static EtcdCluster::Options ShortTokens(const TempDir& dir) {
    const std::string key = dir.File("key.pem");
    const std::string public_key = dir.File("public.pem");
    EXPECT_EQ(RunProcess({"/usr/bin/openssl", "genrsa", "-out", key, "2048"}).status, 0);
    EXPECT_EQ(
        RunProcess({"/usr/bin/openssl", "rsa", "-in", key, "-pubout", "-out", public_key}).status,
        0);
    EtcdCluster::Options options;
    options.arguments = {"--auth-token", absl::StrCat("jwt,pub-key=", public_key, ",priv-key=", key,
                                                      ",sign-method=RS256,ttl=1s")};
    return options;
  }
};

TEST_F(EtcdShortTokenTest, ATokenThatRunsOutIsReplacedAndNobodyNotices) {
  EnableAuth();
  const auto registry = Connect("/mine", "right");
  const auto opened = Open(*registry);
  ASSERT_TRUE(opened.ok()) << opened.status();
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = Follow(*registry, "s", subscriber);
  absl::Status status;
  size_t registered = 0;
  EXPECT_TRUE(Eventually([&] {
    status.Update(Register(*registry, opened->session_id(), absl::StrCat(registered++)));
    status.Update(Renew(*registry, opened->session_id()));
    return !status.ok() || registry->Stats().calls.tokens >= 4;
  }));
  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return subscriber->ids().size() == registered; }));
  EXPECT_FALSE(subscriber->ended().has_value());
}

// A CA, a server's and a client's certificate, by openssl.
void MakeCertificates(const TempDir& dir) {
  const std::string extensions =
      dir.Write("server.ext", "subjectAltName=IP:127.0.0.1,DNS:localhost");
  const auto run = [&](std::vector<std::string> args) {
    args.insert(args.begin(), "/usr/bin/openssl");
    const RunResult result = RunProcess(args);
    ASSERT_EQ(result.status, 0) << result.err;
  };
  run({"req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
       "-days", "2", "-subj", "/CN=test CA", "-keyout", dir.File("ca.key"), "-out",
       dir.File("ca.crt")});
  for (const std::string name : {"server", "client"}) {
    run({"req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
         absl::StrCat("/CN=", name), "-keyout", dir.File(name + ".key"), "-out",
         dir.File(name + ".csr")});
    run({"x509", "-req", "-days", "2", "-in", dir.File(name + ".csr"), "-CA", dir.File("ca.crt"),
         "-CAkey", dir.File("ca.key"), "-CAcreateserial", "-extfile", extensions, "-out",
         dir.File(name + ".crt")});
  }
}

TEST(EtcdTlsTest, WithACertificateAndNotWithout) {
  const TempDir dir;
  MakeCertificates(dir);
  if (HasFatalFailure()) return;
  EtcdCluster::Options options;
  options.tls = dir.path();
  EtcdCluster etcd(options);
  const auto timer = NewTimer(kTestTick);
  const auto open = [&](const std::string& uri, absl::Duration patience) {
    auto options = ParseEtcdUri(uri, timer.get());
    EXPECT_TRUE(options.ok()) << options.status();
    options->client.call_timeout = patience;
    EtcdRegistry registry(*std::move(options));
    OpenSessionRequest request;
    request.set_incarnation("a");
    return CallAndWait<OpenSessionResponse>(registry, &Registry::OpenSession, request).status();
  };
  const std::string ca = absl::StrCat("?ca=", dir.File("ca.crt"));
  EXPECT_EQ(open(etcd.Uri(absl::StrCat("/tls", ca, "&cert=", dir.File("client.crt"),
                                       "&key=", dir.File("client.key"))),
                 kProcessTimeout),
            absl::OkStatus());
  const absl::Duration brief = absl::Seconds(3);  // these it tries as long as it may
  EXPECT_EQ(open(etcd.Uri("/tls" + ca), brief).code(), absl::StatusCode::kUnavailable)
      << "no certificate of the client";
  EXPECT_EQ(open(etcd.Uri("/tls"), brief).code(), absl::StatusCode::kUnavailable) << "plain text";
}

}  // namespace
}  // namespace failback
