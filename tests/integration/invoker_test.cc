// FailbackInvoker in a program: examples/orders_notifier.cc, whose call arrives though no instance
// of the service was there when it was made.

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/util/daemons.h"
#include "tests/util/process.h"

namespace failback {
namespace {

std::unique_ptr<Process> Notifier(const Daemon& registry, const std::string& retries) {
  return Process::Start({RunfilePath("examples/orders_notifier"), "--registry",
                         "grpc://" + registry.address(), "--order", "order-7", "--retries",
                         retries});
}

TEST(InvokerTest, CallMadeBeforeTheServiceStarts_ArrivesAfterwards) {
  const Daemon registry = Daemon::Registry({"--store", "memory:"});
  const auto notifier = Notifier(registry, "600");
  ASSERT_TRUE(notifier->WaitForLine("order-7: UNAVAILABLE").has_value()) << notifier->Describe();

  const auto server =
      Process::Start({RunfilePath("examples/orders_server"), "--id", "orders-1", "--registry",
                      "grpc://" + registry.address(), "--listen", "127.0.0.1:0"});
  ASSERT_TRUE(server->WaitForLine("orders-1 is registered").has_value()) << server->Describe();

  EXPECT_TRUE(notifier->WaitForLine("order-7 served by orders-1").has_value())
      << notifier->Describe();
  EXPECT_EQ(notifier->WaitForExit(), 0) << notifier->Describe();
}

TEST(InvokerTest, CallThatNeverArrives_IsGivenUpAfterItsRetries) {
  const Daemon registry = Daemon::Registry({"--store", "memory:"});
  const auto notifier = Notifier(registry, "1");
  EXPECT_TRUE(notifier->WaitForLine("given up: UNAVAILABLE").has_value()) << notifier->Describe();
  EXPECT_EQ(notifier->WaitForExit(), 1) << notifier->Describe();
}

}  // namespace
}  // namespace failback
