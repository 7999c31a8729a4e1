#include "gateway/xds/bootstrap.h"

#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "tests/util/process.h"

namespace failback::xds {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(BootstrapTest, SaysWhatClientsNeed) {
  google::protobuf::Struct root;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(
                  BootstrapJson({"unix:/run/a \"b\".sock", "agent@host", "eu-1"}), &root)
                  .ok());
  const auto& server = root.fields().at("xds_servers").list_value().values(0).struct_value();
  EXPECT_EQ(server.fields().at("server_uri").string_value(), "unix:/run/a \"b\".sock");
  EXPECT_EQ(server.fields()
                .at("channel_creds")
                .list_value()
                .values(0)
                .struct_value()
                .fields()
                .at("type")
                .string_value(),
            "insecure");
  EXPECT_EQ(server.fields().at("server_features").list_value().values(0).string_value(), "xds_v3");
  const auto& node = root.fields().at("node").struct_value();
  EXPECT_EQ(node.fields().at("id").string_value(), "agent@host");
  EXPECT_EQ(node.fields().at("locality").struct_value().fields().at("zone").string_value(), "eu-1");
}

TEST(BootstrapTest, HasALocalityWithoutAZoneToo) {
  EXPECT_THAT(BootstrapJson({"127.0.0.1:1", "n", ""}), HasSubstr("\"locality\": {}"));
}

TEST(BootstrapTest, PrefersASocketToAPortAndAPortHereToOneElsewhere) {
  EXPECT_EQ(ChooseServerUri({"10.0.0.1:1", "127.0.0.1:2", "unix:/run/a.sock", "unix:/run/b.sock"}),
            "unix:/run/a.sock");
  EXPECT_EQ(ChooseServerUri({"10.0.0.1:1", "[::1]:2"}), "[::1]:2");
  EXPECT_EQ(ChooseServerUri({"10.0.0.1:1"}), "10.0.0.1:1");
  EXPECT_EQ(ChooseServerUri({}), "");
}

TEST(BootstrapTest, ARelativeSocketIsMadeAbsolute) {
  EXPECT_THAT(ChooseServerUri({"unix:here.sock"}), StartsWith("unix:/"));
  EXPECT_THAT(ChooseServerUri({"unix:here.sock"}), testing::EndsWith("/here.sock"));
}

TEST(BootstrapTest, IsReplacedWholeAndReadableByAll) {
  const TempDir dir;
  const std::string path = dir.Write("xds.json", std::string(10000, 'x'));
  const Bootstrap bootstrap = {"127.0.0.1:1", "n", ""};
  ASSERT_TRUE(WriteBootstrap(bootstrap, path).ok());
  EXPECT_EQ(Read(path), BootstrapJson(bootstrap));
  struct stat state;
  ASSERT_EQ(stat(path.c_str(), &state), 0);
  EXPECT_EQ(state.st_mode & 0777, 0644u);
}

TEST(BootstrapTest, APathThatCannotBeWrittenIsNamed) {
  const absl::Status status = WriteBootstrap({"127.0.0.1:1", "n", ""}, "/nonexistent/xds.json");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), StartsWith("/nonexistent/xds.json: "));
  const TempDir dir;
  // Not over a folder.
  EXPECT_FALSE(WriteBootstrap({"127.0.0.1:1", "n", ""}, dir.path()).ok());
}

}  // namespace
}  // namespace failback::xds
