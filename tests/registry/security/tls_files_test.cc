#include "registry/security/tls_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/security/client_security.h"
#include "registry/security/file_changes.h"
#include "registry/security/server_tls.h"
#include "tests/registry/security/test_authority.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class TlsFilesTest : public ::testing::Test {
 protected:
  std::string Error(const TlsFiles& files) {
    return std::string(ReadTlsFiles(files).status().message());
  }

  const TempDir dir_;
  const TestAuthority authority_{"ca"};
  const TestAuthority::Pair pair_ = authority_.IssueServer();
  const std::string ca_ = dir_.Write("ca.crt", authority_.cert());
  const std::string cert_ = dir_.Write("tls.crt", pair_.cert);
  const std::string key_ = dir_.Write("tls.key", pair_.key);
};

TEST_F(TlsFilesTest, GoodFilesAreRead) {
  const absl::StatusOr<TlsMaterial> material = ReadTlsFiles({ca_, cert_, key_});
  ASSERT_TRUE(material.ok()) << material.status();
  EXPECT_EQ(material->ca, authority_.cert());
  EXPECT_EQ(material->cert, pair_.cert);
  EXPECT_EQ(material->key, pair_.key);
  EXPECT_GT(material->times.not_after, absl::Now());
  EXPECT_LT(material->times.not_after, absl::Now() + absl::Hours(2));
}

TEST_F(TlsFilesTest, EachProblemNamesFieldPathAndWhatIsAllowed) {
  const std::string none = dir_.File("none");
  EXPECT_EQ(Error({none, "", ""}), "ca: '" + none + "' cannot be read: No such file or directory");
  EXPECT_EQ(Error({"", none, key_}),
            "cert: '" + none + "' cannot be read: No such file or directory");
  EXPECT_EQ(Error({"", cert_, none}),
            "key: '" + none + "' cannot be read: No such file or directory");
  EXPECT_THAT(Error({dir_.path(), "", ""}), HasSubstr("cannot be read: Is a directory"));
  EXPECT_THAT(Error({"", cert_, ""}), StartsWith("key: is required with cert"));
  EXPECT_THAT(Error({"", "", key_}), StartsWith("cert: is required with key"));
  const std::string junk = dir_.Write("junk", "no PEM\n");
  EXPECT_THAT(Error({junk, "", ""}), AllOf(StartsWith("ca: '" + junk), HasSubstr("PEM form")));
  EXPECT_THAT(Error({"", junk, key_}), AllOf(StartsWith("cert: '" + junk), HasSubstr("PEM form")));
  EXPECT_THAT(Error({"", cert_, junk}), AllOf(StartsWith("key: '" + junk), HasSubstr("PEM form")));
  const std::string large = dir_.Write("large", std::string((1 << 20) + 1, 'x'));
  EXPECT_THAT(Error({large, "", ""}), HasSubstr("is larger than 1048576 bytes"));
}

TEST_F(TlsFilesTest, AKeyOfAnotherCertificateIsRefused) {
  const std::string other = dir_.Write("other.key", authority_.IssueServer().key);
  EXPECT_EQ(Error({"", cert_, other}),
            "key: '" + other + "' does not belong to the certificate in '" + cert_ + "'");
}

TEST_F(TlsFilesTest, CertificatesOutOfTheirTimeAreRefused) {
  TestAuthority::Request request;
  request.ends = -absl::Minutes(1);
  const TestAuthority::Pair old = authority_.Issue(request);
  EXPECT_THAT(Error({"", dir_.Write("a.crt", old.cert), dir_.Write("a.key", old.key)}),
              AllOf(StartsWith("cert: '"), HasSubstr("' ended on 20"), HasSubstr(" UTC; ")));
  request.begins = absl::Minutes(30);
  request.ends = absl::Hours(1);
  const TestAuthority::Pair early = authority_.Issue(request);
  EXPECT_THAT(Error({"", dir_.Write("b.crt", early.cert), dir_.Write("b.key", early.key)}),
              HasSubstr("' begins on 20"));
  // Of authorities one that is valid will do.
  EXPECT_THAT(Error({dir_.File("a.crt"), "", ""}), StartsWith("ca: '"));
  EXPECT_EQ(Error({dir_.Write("both.crt", old.cert + authority_.cert()), "", ""}), "");
}

TEST_F(TlsFilesTest, AnEncryptedKeyIsRefusedAndNotAskedFor) {
  const std::string locked = dir_.Write("locked.key",
                                        "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
                                        "MIH0MF8GCSqGSIb3DQEFDTBSMDEGCSqGSIb3DQEFDDAk\n"
                                        "-----END ENCRYPTED PRIVATE KEY-----\n");
  EXPECT_THAT(Error({"", cert_, locked}), HasSubstr("without a passphrase"));
}

TEST_F(TlsFilesTest, AServerKeepsThePairThatItHas) {
  ServerTls::Options options;
  options.files = {"", cert_, key_};
  const auto tls = ServerTls::Create(options);
  ASSERT_TRUE(tls.ok()) << tls.status();
  EXPECT_THAT((*tls)->Reload(), ::testing::Eq(absl::StatusOr<bool>(false)));
  const absl::Time first = (*tls)->times().not_after;
  TestAuthority::Request request;
  request.ends = absl::Hours(5);
  const TestAuthority::Pair next = authority_.Issue(request);
  dir_.Write("tls.crt", next.cert);  // half of a rotation
  const absl::StatusOr<bool> refused = (*tls)->Reload();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("does not belong"));
  EXPECT_EQ((*tls)->Reload(), absl::StatusOr<bool>(false)) << "told once";
  EXPECT_EQ((*tls)->times().not_after, first);
  dir_.Write("tls.key", next.key);
  EXPECT_EQ((*tls)->Reload(), absl::StatusOr<bool>(true));
  EXPECT_GT((*tls)->times().not_after, first + absl::Hours(3));
}

TEST_F(TlsFilesTest, AServerNeedsAPairAndAuthoritiesForClients) {
  ServerTls::Options options;
  EXPECT_THAT(std::string(ServerTls::Create(options).status().message()),
              StartsWith("cert: is required"));
  options.files = {"", cert_, key_};
  options.client_certificates = ClientCertificates::kRequired;
  EXPECT_THAT(std::string(ServerTls::Create(options).status().message()),
              StartsWith("ca: is required"));
}

TEST_F(TlsFilesTest, AClientNeedsAuthorities) {
  ClientSecurity::Options options;
  options.tls = {"", cert_, key_};
  EXPECT_THAT(std::string(ClientSecurity::Create(options).status().message()),
              StartsWith("ca: is required with cert"));
  options.tls = {};
  options.server_name = "x";
  EXPECT_THAT(std::string(ClientSecurity::Create(options).status().message()),
              StartsWith("ca: is required with server_name"));
}

TEST_F(TlsFilesTest, ATokenIsReadForEachCallAndCheckedFirst) {
  ClientSecurity::Options options;
  options.token_file = dir_.File("token");
  EXPECT_THAT(std::string(ClientSecurity::Create(options).status().message()),
              AllOf(StartsWith("token_file: '"), HasSubstr("No such file")));
  dir_.Write("token", "abc\n");
  const auto security = ClientSecurity::Create(options);
  ASSERT_TRUE(security.ok()) << security.status();
  const auto authenticate = [&] {
    grpc::ClientContext context;
    return (*security)->Authenticate(&context);
  };
  EXPECT_TRUE(authenticate().ok());
  for (const std::string bad : {"", " \n", "a b", "a\nb", "a\x01", "t\xc3\xb6ken"}) {
    dir_.Write("token", bad);
    const absl::Status status = authenticate();
    EXPECT_TRUE(absl::IsUnauthenticated(status)) << bad;
    if (bad.size() > 3) {
      EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr(bad)));
    }
  }
  dir_.Write("token", std::string(9000, 'x'));
  EXPECT_THAT(std::string(authenticate().message()), HasSubstr("at most 8192"));
  dir_.Write("token", "def");
  EXPECT_TRUE(authenticate().ok());
}

TEST(FileChangesTest, SeesWhatStatTells) {
  const TempDir dir;
  FileChanges changes({dir.File("a"), dir.File("b")});
  EXPECT_TRUE(changes.Check()) << "the first time";
  EXPECT_FALSE(changes.Check());
  dir.Write("a", "1");
  EXPECT_TRUE(changes.Check());
  EXPECT_TRUE(changes.Check()) << "written a moment ago, perhaps again";
  const timespec old[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, dir.File("a").c_str(), old, 0), 0);
  EXPECT_TRUE(changes.Check());
  EXPECT_FALSE(changes.Check());
  // As a ConfigMap is swapped.
  ASSERT_EQ(rename(dir.File("a").c_str(), dir.File("c").c_str()), 0);
  ASSERT_EQ(symlink(dir.File("c").c_str(), dir.File("a").c_str()), 0);
  EXPECT_TRUE(changes.Check()) << "the same file, reached through a link: its inode has changed";
  EXPECT_FALSE(changes.Check());
  unlink(dir.File("a").c_str());
  EXPECT_TRUE(changes.Check());
  EXPECT_FALSE(changes.Check());
}

}  // namespace
}  // namespace failback
