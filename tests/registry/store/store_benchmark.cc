// Registrations a second of StoreRegistry alone, without a network.
//
//   bazel run -c opt //tests/registry/store:store_benchmark

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "tests/registry/store/harness.h"
#include "tests/util/process.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

// About 200 bytes serialized.
ServiceInstance Typical(int64_t number) {
  ServiceInstance instance =
      MakeInstance("orders", absl::StrCat("orders-", 100000000 + number), 8080);
  instance.mutable_key()->set_namespace_("default");
  instance.set_address("10.123.45.67");
  instance.set_zone("eu-west-1a");
  for (int i = 0; i < 5; ++i) {
    (*instance.mutable_metadata())[absl::StrCat("key-", i)] =
        absl::StrCat("some-value-", number % 1000);
  }
  return instance;
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

struct Store {
  explicit Store(int store) {
    timer = NewTimer();
    options.timer = timer.get();
    if (store > 0) options.uri = "sqlite://" + folder.File("registry.db");
    if (store == 1) options.durability = Durability::kNormal;
    Open();
  }
  void Open() {
    registry = StoreRegistry::Open(options).value();
    OpenSessionRequest open;
    open.set_incarnation("bench");
    open.mutable_ttl()->set_seconds(3600);
    session = CallAndWait(*registry, &Registry::OpenSession, open)->session_id();
  }
  TempDir folder;
  std::unique_ptr<HashedWheelTimer> timer;
  StoreRegistry::Options options;
  std::unique_ptr<StoreRegistry> registry;
  std::string session;
};

const char* StoreName(int64_t store) {
  constexpr const char* kNames[] = {"memory", "sqlite-normal", "sqlite-full"};
  return kNames[store];
}

// New instances, `range(1)` in a call, `range(2)` calls in flight.
void BM_Register(benchmark::State& state) {
  Store store(static_cast<int>(state.range(0)));
  const int64_t batch = state.range(1);
  const int64_t window = state.range(2);
  constexpr int64_t kInstances = 200000;
  const int64_t calls = std::min<int64_t>(kInstances / batch, 20000);
  Mutex mu;
  CondVar changed;
  for (auto _ : state) {
    state.PauseTiming();
    std::vector<RegisterRequest> requests(calls);
    int64_t number = 0;
    for (auto& request : requests) {
      request.set_session_id(store.session);
      for (int64_t i = 0; i < batch; ++i) {
        *request.add_registrations()->mutable_instance() = Typical(number++);
        request.mutable_registrations(i)->set_generation(1);
      }
    }
    state.ResumeTiming();
    int64_t in_flight = 0;
    int64_t done = 0;
    for (const auto& request : requests) {
      {
        MutexLock lock(&mu);
        while (in_flight >= window) changed.Wait(&mu);
        ++in_flight;
      }
      store.registry->Register(request, [&](absl::StatusOr<RegisterResponse> response) {
        if (!response.ok() || response->results(0).status().code() != 0) std::abort();
        MutexLock lock(&mu);
        --in_flight;
        ++done;
        changed.Signal();
      });
    }
    {
      MutexLock lock(&mu);
      while (done < calls) changed.Wait(&mu);
    }
  }
  state.SetItemsProcessed(state.iterations() * calls * batch);
  state.counters["groups"] = store.registry->Stats().groups;
  state.SetLabel(StoreName(state.range(0)));
}
BENCHMARK(BM_Register)
    ->ArgNames({"store", "batch", "window"})
    ->Args({0, 1, 1})
    ->Args({0, 100, 1})
    ->Args({0, 500, 8})
    ->Args({1, 1, 1})
    ->Args({1, 1, 100})
    ->Args({1, 500, 8})
    ->Args({2, 1, 1})
    ->Args({2, 1, 100})
    ->Args({2, 500, 8})
    ->Iterations(1)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void BM_KeepAlive(benchmark::State& state) {
  Store store(0);
  KeepAliveRequest request;
  request.set_session_id(store.session);
  for (auto _ : state) {
    store.registry->KeepAlive(request, [](absl::StatusOr<KeepAliveResponse> response) {
      if (!response.ok()) std::abort();
    });
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_KeepAlive);

// One Register in a service that many follow under filters that it does not match.
void BM_RegisterBesideFilters(benchmark::State& state) {
  struct Ignore : NotifyListener {
    void OnEvent(const EventPtr&) override {}
    void OnEnd(const absl::Status& status) override { std::abort(); }
  };
  Store store(0);
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  for (int i = 0; i < state.range(0); ++i) {
    SubscribeRequest request;
    request.mutable_selector()->set_service(Typical(0).key().service());
    (*request.mutable_selector()->mutable_metadata())["shard"] = absl::StrCat(i);
    streams.push_back(store.registry->Subscribe(request, std::make_shared<Ignore>()));
  }
  uint32_t port = 1;
  for (auto _ : state) {
    RegisterRequest request;
    request.set_session_id(store.session);
    ServiceInstance* const instance = request.add_registrations()->mutable_instance();
    *instance = Typical(0);
    instance->set_port(1 + port++ % 60000);
    if (!CallAndWait(*store.registry, &Registry::Register, request).ok()) std::abort();
  }
}
BENCHMARK(BM_RegisterBesideFilters)->Arg(0)->Arg(2000);

// A page of one record from the middle of an incarnation with 100,000 instances.
void BM_ListOneOfAnIncarnation(benchmark::State& state) {
  Store store(0);
  for (int64_t number = 0; number < 100000;) {
    RegisterRequest request;
    request.set_session_id(store.session);
    for (int i = 0; i < 500; ++i) {
      *request.add_registrations()->mutable_instance() = Typical(number++);
    }
    if (!CallAndWait(*store.registry, &Registry::Register, request).ok()) std::abort();
  }
  ListRequest list;
  list.set_page_size(1);
  list.set_incarnation(
      CallAndWait(*store.registry, &Registry::List, list)->records(0).incarnation());
  for (auto _ : state) {
    const auto page = CallAndWait(*store.registry, &Registry::List, list);
    if (page->records_size() != 1) std::abort();
    list.set_page_token(page->next_page_token());
  }
}
BENCHMARK(BM_ListOneOfAnIncarnation)->Iterations(1000);

// Start of a store that holds 100,000 instances, up to the first page of a listing.
void BM_Restart(benchmark::State& state) {
  Store store(1);
  for (int64_t number = 0; number < 100000;) {
    RegisterRequest request;
    request.set_session_id(store.session);
    for (int i = 0; i < 500; ++i) {
      *request.add_registrations()->mutable_instance() = Typical(number++);
    }
    if (!CallAndWait(*store.registry, &Registry::Register, request).ok()) std::abort();
  }
  const int64_t before = ResidentBytes();
  for (auto _ : state) {
    state.PauseTiming();
    store.registry.reset();
    state.ResumeTiming();
    store.registry = StoreRegistry::Open(store.options).value();
    if (CallAndWait(*store.registry, &Registry::List, ListRequest())->records_size() != 1000) {
      std::abort();
    }
  }
  state.counters["resident"] = static_cast<double>(before);
}
BENCHMARK(BM_Restart)->Unit(benchmark::kMillisecond)->Iterations(3)->UseRealTime();

// Resident bytes for each of a million instances.
void BM_Memory(benchmark::State& state) {
  for (auto _ : state) {
    Store store(0);
    const int64_t before = ResidentBytes();
    constexpr int64_t kInstances = 1000000;
    for (int64_t number = 0; number < kInstances;) {
      RegisterRequest request;
      request.set_session_id(store.session);
      for (int i = 0; i < 500; ++i) {
        *request.add_registrations()->mutable_instance() = Typical(number++);
      }
      if (!CallAndWait(*store.registry, &Registry::Register, request).ok()) std::abort();
    }
    state.counters["bytes_each"] =
        static_cast<double>(ResidentBytes() - before) / static_cast<double>(kInstances);
    state.counters["payload"] = static_cast<double>(Typical(1).ByteSizeLong());
  }
}
BENCHMARK(BM_Memory)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace failback

BENCHMARK_MAIN();
