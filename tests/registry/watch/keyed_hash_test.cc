#include "registry/watch/keyed_hash.h"

#include <string>

#include "gtest/gtest.h"

namespace failback {
namespace {

// As Python 3.11 has it with PYTHONHASHSEED=0.
TEST(KeyedHash, IsSipHash13) {
  EXPECT_EQ(SipHash13(0, 0, "a"), 4644417185603328019u);
  EXPECT_EQ(SipHash13(0, 0, "failback"), 14295503229008987410u);
  EXPECT_EQ(SipHash13(0, 0, "0123456789abcdef0"), 17814194274854507048u);
}

TEST(KeyedHash, HasAKeyOfItsOwn) {
  EXPECT_EQ(KeyedHash("orders"), KeyedHash(std::string("orders")));
  EXPECT_NE(KeyedHash("orders"), SipHash13(0, 0, "orders"));
}

}  // namespace
}  // namespace failback
