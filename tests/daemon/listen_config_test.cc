#include "daemon/listen_config.h"

#include <string>

#include "failback/registry/v1/config.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using testing::HasSubstr;

TEST(ValidateHostsTest, EachIsOneName) {
  const ConfigLoader loader({"failback-registry", "", ""},
                            registry::v1::RegistryConfig::descriptor());
  EXPECT_TRUE(ValidateHosts("http.hosts", {}, loader).ok());
  EXPECT_TRUE(ValidateHosts("http.hosts", {"registry", "registry.staging.svc"}, loader).ok());
  for (const std::string wrong : {"a,b", "a b", "a:7072", "http://a", ""}) {
    const absl::Status status = ValidateHosts("http.hosts", {"registry", wrong}, loader);
    EXPECT_THAT(std::string(status.message()), HasSubstr("http.hosts"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("'" + wrong + "'"));
  }
}

}  // namespace
}  // namespace failback
