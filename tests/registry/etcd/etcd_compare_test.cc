// EtcdRegistry on a real member of etcd decides as the embedded store does.

#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/registry/store/harness.h"
#include "tests/util/environment.h"

namespace failback {
namespace {

// Random calls to both stores: the same outcomes, and the same list.
class Twins {
 public:
  Twins(const EtcdCluster& etcd, uint64_t seed) : random_(seed), etcd_(etcd, NewPrefix()) {}

  void Step() {
    switch (Pick(12)) {
      case 0:
        Open();
        break;
      case 1:
        CloseOne();
        break;
      case 2:
        etcd_.Open();  // as by another server
        break;
      case 3:
      case 4:
      case 5:
        Unregister();
        break;
      default:
        Register();
    }
    Compare();
  }

 private:
  struct Pair {
    std::string incarnation;
    std::string store;
    std::string etcd;
  };

  size_t Pick(size_t n) { return random_() % n; }

  void Open() {
    const std::string incarnation = absl::StrCat("inc", Pick(4));
    const OpenSessionResponse a = store_.OpenSession(incarnation);
    const OpenSessionResponse b = etcd_.OpenSession(incarnation);
    EXPECT_EQ(a.resumed(), b.resumed());
    if (!a.resumed()) sessions_.push_back({incarnation, a.session_id(), b.session_id()});
  }

  void CloseOne() {
    if (sessions_.empty()) return;
    const Pair session = sessions_[Pick(sessions_.size())];
    EXPECT_EQ(store_.CloseSession(session.store), absl::OkStatus());
    EXPECT_EQ(etcd_.CloseSession(session.etcd), absl::OkStatus());
    // Its id stays in use: calls of a session that is over.
  }

  Pair AnySession() {
    if (sessions_.empty() || Pick(6) == 0) return Pair();  // detached
    return sessions_[Pick(sessions_.size())];
  }

  void Register() {
    const Pair session = AnySession();
    ServiceInstance instance =
        MakeInstance(absl::StrCat("s", Pick(2)), absl::StrCat("i", Pick(3)), 1 + Pick(2));
    instance.set_persistent(Pick(5) == 0);
    const uint64_t generation = Pick(8);
    Same(store_.Register(session.store, instance, generation),
         etcd_.Register(session.etcd, instance, generation));
  }

  void Unregister() {
    const Pair session = AnySession();
    const InstanceKey key =
        MakeInstance(absl::StrCat("s", Pick(2)), absl::StrCat("i", Pick(3))).key();
    const uint64_t generation = Pick(8);
    Same(store_.Unregister(session.store, key, generation),
         etcd_.Unregister(session.etcd, key, generation));
  }

  static void Same(const Outcome& a, const Outcome& b) {
    EXPECT_EQ(a.status.code(), b.status.code()) << a.status << " | " << b.status;
    EXPECT_EQ(ReasonOf(a.status), ReasonOf(b.status));
    EXPECT_EQ(a.generation, b.generation);
  }

  void Compare() {
    const auto lines = [](RegistryCalls& registry) {
      std::set<std::string> lines;
      for (const auto& record : registry.List()) {
        lines.insert(absl::StrCat(KeyText(record.instance().key()), " ", record.instance().port(),
                                  record.instance().persistent() ? " persistent" : "", " of '",
                                  record.incarnation(), "' generation ", record.generation()));
      }
      return lines;
    };
    EXPECT_EQ(lines(store_), lines(etcd_));
    if (Pick(4) != 0) return;
    const std::string incarnation = absl::StrCat("inc", Pick(4));
    const auto owned = [&](Registry& registry) {
      ListRequest request;
      request.set_incarnation(incarnation);
      std::vector<std::string> keys;
      const auto page = CallAndWait<ListResponse>(registry, &Registry::List, request);
      EXPECT_TRUE(page.ok()) << page.status();
      if (!page.ok()) return keys;
      for (const auto& record : page->records()) keys.push_back(KeyText(record.instance().key()));
      return keys;
    };
    EXPECT_EQ(owned(*store_), owned(*etcd_));
  }

  std::mt19937_64 random_;
  StoreHarness store_;
  EtcdHarness etcd_;
  std::vector<Pair> sessions_;
};

class EtcdCompareTest : public EtcdTest {};

TEST_F(EtcdCompareTest, DecidesAsTheEmbeddedStore) {
  const auto given = FromEnvironment<uint64_t>("FAILBACK_TEST_SEED", 0);
  const uint64_t first = given == 0 ? std::random_device()() : given;
  for (uint64_t seed = first; seed < first + (given == 0 ? 6 : 1); ++seed) {
    SCOPED_TRACE(absl::StrCat("FAILBACK_TEST_SEED=", seed));
    Twins twins(etcd(), seed);
    for (int step = 0; step < 250 && !HasFailure(); ++step) twins.Step();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace failback
