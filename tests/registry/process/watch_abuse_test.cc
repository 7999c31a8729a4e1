// Watch streams of clients that ask for much and read nothing, or that begin and end without rest:
// the registry's memory stays bounded and others are served.

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/registry/process/bystander.h"
#include "tests/registry/process/registry_client.h"
#include "tests/util/daemons.h"
#include "tests/util/sanitized_build.h"

namespace failback {
namespace {

using registry::v1::RegistryService;
using registry::v1::WatchRequest;
using registry::v1::WatchResponse;

int64_t ResidentBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class WatchAbuseTest : public ::testing::Test {
 protected:
  WatchAbuseTest() : daemon_(Daemon::Registry({"--store", "memory:"})) {
    bystander_ = std::make_unique<Bystander>(daemon_.address());
    EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
    RegistryClient client(daemon_.address());
    std::vector<ServiceInstance> instances;
    for (int i = 0; i < 100; ++i) {
      instances.push_back(MakeInstance("large", absl::StrCat(i), 1));
      (*instances.back().mutable_metadata())["text"] = std::string(900, 'x');
    }
    EXPECT_TRUE(client.Register("", instances).ok());
  }

  int64_t memory() { return ResidentBytes(daemon_.process().pid()); }

  struct Watcher {
    explicit Watcher(const std::string& address) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      stub = RegistryService::NewStub(
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
      context.set_deadline(absl::ToChronoTime(absl::Now() + 3 * kProcessTimeout));
      stream = stub->Watch(&context);
    }
    ~Watcher() { context.TryCancel(); }

    std::unique_ptr<RegistryService::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<WatchRequest, WatchResponse>> stream;
  };

  Daemon daemon_;
  std::unique_ptr<Bystander> bystander_;
};

// Each of 100,000 subscriptions would bring a snapshot of 100 KB.
TEST_F(WatchAbuseTest, WhoAsksForMuchAndReadsNothingCostsAMegabyteOrSo) {
  constexpr int kWatchers = 10;
  constexpr int kSubscribes = 100000;
  const int64_t before = memory();
  std::vector<std::unique_ptr<Watcher>> watchers;
  std::vector<std::thread> writers;
  std::atomic<int64_t> sent{0};
  for (int i = 0; i < kWatchers; ++i) {
    watchers.push_back(std::make_unique<Watcher>(daemon_.address()));
    writers.emplace_back([&, watcher = watchers.back().get()] {
      for (int id = 0; id < kSubscribes;) {
        WatchRequest message;
        for (int j = 0; j < 100; ++j) {
          message.add_commands()->set_watch_id(++id);
          message.mutable_commands(j)->mutable_subscribe()->mutable_selector()->set_service(
              "large");
        }
        if (!watcher->stream->Write(message)) return;
        sent += 100;
      }
    });
  }
  // All have come to a stop when nothing more is sent for as long as the bystander takes: what is
  // not read is small, and waits in the connection.
  int64_t last = -1;
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(bystander_->Prospers(1)) << bystander_->failure();
    const int64_t now = sent;
    return std::exchange(last, now) == now && now > 0;
  }));
  EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
  const int64_t each = (memory() - before) / kWatchers;
  std::cout << each << " bytes for each stopped watcher" << std::endl;
  if (kMemoryIsMeasurable) {
    EXPECT_LT(each, 6 << 20);
  }
  for (const auto& watcher : watchers) watcher->context.TryCancel();
  for (std::thread& writer : writers) writer.join();
  EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
}

// Subscribes and unsubscribes in turn, read and unread.
TEST_F(WatchAbuseTest, AStormOfUnsubscribesIsCarriedOut) {
  constexpr uint64_t kRounds = 20000;
  Watcher watcher(daemon_.address());
  std::thread writer([&] {
    for (uint64_t id = 1; id <= kRounds; id += 50) {
      WatchRequest message;
      for (uint64_t j = id; j < id + 50; ++j) {
        auto& subscribe = *message.add_commands();
        subscribe.set_watch_id(j);
        subscribe.mutable_subscribe()->mutable_selector()->set_service(absl::StrCat("none-", j));
        auto& unsubscribe = *message.add_commands();
        unsubscribe.set_watch_id(j);
        unsubscribe.mutable_unsubscribe();
      }
      if (!watcher.stream->Write(message)) return;
    }
    watcher.stream->WritesDone();
  });
  uint64_t ends = 0;
  for (WatchResponse response; watcher.stream->Read(&response);) {
    for (const auto& item : response.items()) ends += item.has_end() ? 1 : 0;
  }
  writer.join();
  EXPECT_TRUE(watcher.stream->Finish().ok());
  EXPECT_EQ(ends, kRounds);
  EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
}

}  // namespace
}  // namespace failback
