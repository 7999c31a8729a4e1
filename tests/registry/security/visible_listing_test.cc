// What a listing tells of services that the caller may not read: nothing.

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "registry/security/access_control.h"
#include "registry/security/guarded_registry.h"
#include "tests/registry/fake_registry.h"
#include "tests/registry/store/harness.h"

namespace failback {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::Not;

struct Allow {
  std::string token;
  config::v1::Permission what;
  std::string services;
};

// Each name is its own token.
AccessRules MakeRules(const std::vector<Allow>& all) {
  config::v1::Policy policy;
  config::v1::Tokens known;
  std::set<std::string> names;
  for (const Allow& allow : all) {
    auto* const rule = policy.add_rules();
    rule->add_tokens(allow.token);
    rule->add_allow(allow.what);
    rule->add_namespaces("default");
    rule->add_services(allow.services);
    names.insert(allow.token);
  }
  for (const std::string& name : names) {
    auto* const token = known.add_tokens();
    token->set_name(name);
    token->set_sha256(absl::BytesToHexString(Sha256(name)));
  }
  auto rules = AccessRules::Make(&policy, &known);
  EXPECT_TRUE(rules.ok()) << rules.status();
  return rules.ok() ? *std::move(rules) : AccessRules();
}

constexpr auto kRead = config::v1::PERMISSION_READ;
constexpr auto kRegister = config::v1::PERMISSION_REGISTER;

class VisibleListingTest : public ::testing::Test {
 protected:
  Identity Token(const std::string& name) const {
    auto identity = access_->rules()->BearerOf(name);
    EXPECT_TRUE(identity.ok()) << identity.status();
    return identity.ok() ? *identity : Identity();
  }

  // Many hidden ones, before, between and after those that are seen.
  void Fill(StoreHarness& store) {
    const std::string session = Open(store, "fleet", "agent");
    for (const char* service : {"a-hidden", "seen-1", "seen-1-hidden", "seen-2", "z-hidden"}) {
      for (int i = 0; i < 7; ++i) {
        ServiceInstance instance = MakeInstance(service, absl::StrCat("id-", i));
        (*instance.mutable_metadata())["secret"] = absl::StrCat(i % 2);
        EXPECT_TRUE(store.Register(session, instance).ok());
      }
    }
  }
  std::string Open(StoreHarness& store, const std::string& who, const std::string& incarnation) {
    GuardedRegistry guarded(&*store, access_, Token(who));
    OpenSessionRequest request;
    request.set_incarnation(incarnation);
    const auto response =
        CallAndWait<OpenSessionResponse>(guarded, &Registry::OpenSession, request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response->session_id();
  }

  // Keys, page by page. Tokens are looked into.
  std::vector<std::string> List(Registry& registry, const std::string& who, ListRequest request,
                                int* pages = nullptr) {
    GuardedRegistry guarded(&registry, access_, Token(who));
    std::vector<std::string> keys;
    do {
      const auto response = CallAndWait<ListResponse>(guarded, &Registry::List, request);
      EXPECT_TRUE(response.ok()) << response.status();
      if (!response.ok()) break;
      for (const auto& record : response->records())
        keys.push_back(KeyText(record.instance().key()));
      std::string token;
      EXPECT_TRUE(absl::WebSafeBase64Unescape(response->next_page_token(), &token));
      if (who != "all") {
        EXPECT_THAT(token, Not(::testing::HasSubstr("default")));
      }
      if (pages != nullptr) ++*pages;
      request.set_page_token(response->next_page_token());
    } while (!request.page_token().empty());
    return keys;
  }
  std::vector<std::string> List(StoreHarness& store, const std::string& who,
                                const ListRequest& request, int* pages = nullptr) {
    return List(*store, who, request, pages);
  }

  const std::shared_ptr<AccessControl> access_ =
      std::make_shared<AccessControl>(MakeRules({{"reader", kRead, "seen-1"},
                                                 {"reader", kRead, "seen-2"},
                                                 {"fleet", kRegister, "*"},
                                                 {"all", kRead, "*"}}));
};

TEST_F(VisibleListingTest, PagesHoldWhatMayBeReadAndTokensToo) {
  StoreHarness store;
  Fill(store);
  std::vector<std::string> expected;
  for (const char* service : {"seen-1", "seen-2"}) {
    for (int i = 0; i < 7; ++i) expected.push_back(absl::StrCat("default/", service, "/id-", i));
  }
  for (const int size : {1, 2, 7, 14, 1000}) {
    ListRequest request;
    request.set_page_size(size);
    int pages = 0;
    EXPECT_THAT(List(store, "reader", request, &pages), ElementsAreArray(expected)) << size;
    EXPECT_EQ(pages, std::max(1, 14 / size)) << "no page is short for what is hidden";
  }
}

// Who holds a key is shown to those that may read the service.
TEST_F(VisibleListingTest, ARefusalNamesTheHolderToReadersOnly) {
  StoreHarness store;
  access_->Update(MakeRules({{"fleet", kRegister, "*"}, {"fleet", kRead, "seen"}}));
  const std::string early = Open(store, "fleet", "early");
  const std::string late = Open(store, "fleet", "late");
  GuardedRegistry guarded(&*store, access_, Token("fleet"));
  const auto state = [&](const std::string& session, const std::vector<const char*>& services) {
    RegisterRequest request;
    request.set_session_id(session);
    for (const char* service : services) {
      *request.add_registrations()->mutable_instance() = MakeInstance(service, "a");
    }
    return CallAndWait<RegisterResponse>(guarded, &Registry::Register, request).value();
  };
  state(late, {"hidden", "seen"});
  const RegisterResponse refused = state(early, {"hidden", "seen"});
  std::vector<std::optional<std::string>> holders;
  for (const auto& result : refused.results()) {
    const absl::Status status = StatusFromProto(result.status());
    EXPECT_EQ(ReasonOf(status), registry::v1::ERROR_REASON_SUPERSEDED) << status;
    EXPECT_EQ(ReasonMetadata(status, "rank"), "2");
    holders.push_back(ReasonMetadata(status, "holder"));
  }
  EXPECT_THAT(holders, ::testing::ElementsAre(std::nullopt, "late"));
}

TEST_F(VisibleListingTest, FiltersMeetNothingThatIsHidden) {
  StoreHarness store;
  Fill(store);
  const auto with = [&](const std::string& secret) {
    ListRequest request;
    (*request.mutable_selector()->mutable_metadata())["secret"] = secret;
    request.set_page_size(3);
    return request;
  };
  int pages = 0;
  EXPECT_EQ(List(store, "reader", with("1"), &pages).size(), 6u);
  EXPECT_EQ(pages, 2);
  pages = 0;
  EXPECT_THAT(List(store, "reader", with("2"), &pages), IsEmpty());
  EXPECT_EQ(pages, 1);
}

// Registering is no reason to see what others have registered.
TEST_F(VisibleListingTest, AnIncarnationOfOthersShowsWhatMayBeRead) {
  StoreHarness store;
  Fill(store);
  ListRequest request;
  request.set_incarnation("agent");
  EXPECT_EQ(List(store, "fleet", request).size(), 35u) << "its own";
  EXPECT_EQ(List(store, "reader", request).size(), 14u);
  access_->Update(MakeRules({{"fleet", kRegister, "*"}, {"other", kRegister, "*"}}));
  EXPECT_EQ(List(store, "fleet", request).size(), 35u);
  EXPECT_THAT(List(store, "other", request), IsEmpty());
  request.mutable_selector()->set_service("seen-1");
  EXPECT_THAT(List(store, "other", request), IsEmpty());
}

// An agent compares its incarnation's listing with its intents: what it has registered is there,
// also when the rules no longer allow it to register or read that.
TEST_F(VisibleListingTest, AnIncarnationsOwnerSeesAllOfItWhateverItsRules) {
  StoreHarness store;
  Fill(store);
  ListRequest request;
  request.set_incarnation("agent");
  request.set_page_size(10);
  access_->Update(MakeRules({{"fleet", kRead, "elsewhere"}, {"reader", kRead, "seen-1"}}));
  EXPECT_EQ(List(store, "fleet", request).size(), 35u);
  EXPECT_EQ(List(store, "reader", request).size(), 7u);
  request.mutable_selector()->set_service("z-hidden");
  EXPECT_EQ(List(store, "fleet", request).size(), 7u);
  request.clear_selector();
  const auto coverage = [&](const std::string& who) {
    GuardedRegistry guarded(&*store, access_, Token(who));
    return CallAndWait<ListResponse>(guarded, &Registry::List, request)->coverage();
  };
  EXPECT_EQ(coverage("fleet"), registry::v1::LIST_COVERAGE_WHOLE);
  EXPECT_EQ(coverage("reader"), registry::v1::LIST_COVERAGE_PART);
  // Without any permission there is no listing at all, which is no empty one.
  access_->Update(MakeRules({{"reader", kRead, "seen-1"}, {"fleet", kRead, "elsewhere"}}));
  const Identity fleet = Token("fleet");
  access_->Update(MakeRules({{"reader", kRead, "seen-1"}}));
  GuardedRegistry guarded(&*store, access_, fleet);
  EXPECT_FALSE(CallAndWait<ListResponse>(guarded, &Registry::List, request).ok());
}

// An incarnation of before there were rules is no caller's own.
TEST_F(VisibleListingTest, AnIncarnationWithoutAnOwnerIsShownInPartAndSaysSo) {
  StoreHarness store;
  const std::string session = store.Session("agent");
  for (const char* service : {"hidden", "seen-1"}) {
    ASSERT_TRUE(store.Register(session, MakeInstance(service, "a")).ok());
  }
  ListRequest request;
  request.set_incarnation("agent");
  EXPECT_THAT(List(store, "reader", request), ::testing::ElementsAre("default/seen-1/a"));
  GuardedRegistry guarded(&*store, access_, Token("reader"));
  EXPECT_EQ(CallAndWait<ListResponse>(guarded, &Registry::List, request)->coverage(),
            registry::v1::LIST_COVERAGE_PART);
}

// A registry of a version that knows no scopes does not say whose the incarnation is.
TEST_F(VisibleListingTest, WhatARegistryElsewhereShowsOfAnIncarnationIsAPart) {
  FakeRegistry elsewhere;
  ListResponse everything;
  *everything.add_records()->mutable_instance() = MakeInstance("hidden", "a");
  *everything.add_records()->mutable_instance() = MakeInstance("seen-1", "a");
  elsewhere.lists.AnswerWith([&](const ListRequest&) { return everything; });
  GuardedRegistry guarded(&elsewhere, access_, Token("reader"));
  ListRequest request;
  request.set_incarnation("agent");
  const auto page = CallAndWait<ListResponse>(guarded, &Registry::List, request);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->records_size(), 1);
  EXPECT_EQ(page->coverage(), registry::v1::LIST_COVERAGE_PART);
}

TEST_F(VisibleListingTest, WhoMayReadAllListsAsEver) {
  StoreHarness store;
  Fill(store);
  EXPECT_EQ(List(store, "all", ListRequest()).size(), 35u);
}

// As an agent, or a registry over etcd: it lists everything, and its tokens are keys.
TEST_F(VisibleListingTest, TokensOfARegistryElsewhereAreSealed) {
  const std::string place("default\0a-hidden\0id-3", 21);
  FakeRegistry elsewhere;
  ListResponse everything;
  *everything.add_records()->mutable_instance() = MakeInstance("a-hidden", "id-3");
  everything.set_next_page_token(place);
  elsewhere.lists.AnswerWith([&](const ListRequest&) { return everything; });
  GuardedRegistry guarded(&elsewhere, access_, Token("reader"));
  ListRequest request;
  const auto page = CallAndWait<ListResponse>(guarded, &Registry::List, request);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->records_size(), 0);
  std::string token;
  ASSERT_TRUE(absl::WebSafeBase64Unescape(page->next_page_token(), &token));
  EXPECT_THAT(token, Not(::testing::HasSubstr("hidden")));
  // It is good for the next page, and nothing else is.
  request.set_page_token(page->next_page_token());
  EXPECT_TRUE(CallAndWait<ListResponse>(guarded, &Registry::List, request).ok());
  EXPECT_EQ(elsewhere.lists.last_request().page_token(), place);
  token.back() = static_cast<char>(token.back() ^ 1);
  for (const std::string& forged : {place, absl::WebSafeBase64Escape(place),
                                    absl::WebSafeBase64Escape(token), std::string(10000, 'a')}) {
    request.set_page_token(forged);
    EXPECT_EQ(ReasonOf(CallAndWait<ListResponse>(guarded, &Registry::List, request).status()),
              registry::v1::ERROR_REASON_INVALID_FIELD);
  }
  everything.clear_next_page_token();
  const auto last = CallAndWait<ListResponse>(guarded, &Registry::List, ListRequest());
  EXPECT_EQ(last->next_page_token(), "");
}

TEST_F(VisibleListingTest, TokensThatAreMadeUpAreRefused) {
  StoreHarness store;
  Fill(store);
  GuardedRegistry guarded(&*store, access_, Token("reader"));
  ListRequest request;
  for (const std::string& token :
       {std::string("x"), CanonicalKey("default", "a-hidden", "id-3"), std::string("\0", 1)}) {
    request.set_page_token(absl::WebSafeBase64Escape(token));
    EXPECT_EQ(ReasonOf(CallAndWait<ListResponse>(guarded, &Registry::List, request).status()),
              registry::v1::ERROR_REASON_INVALID_FIELD);
  }
}

// What is asked of the registry is what the caller may see: it has no reason to look at more.
TEST_F(VisibleListingTest, TheRegistryIsAskedForWhatTheCallerMayRead) {
  FakeRegistry registry;
  registry.lists.AnswerWith([](const ListRequest&) { return ListResponse(); });
  GuardedRegistry guarded(&registry, access_, Token("reader"));
  ASSERT_TRUE(CallAndWait<ListResponse>(guarded, &Registry::List, ListRequest()).ok());
  const ListRequest asked = registry.lists.last_request();
  ASSERT_EQ(asked.scopes_size(), 1);
  ASSERT_EQ(asked.scopes(0).grants_size(), 1);
  EXPECT_THAT(asked.scopes(0).grants(0).namespaces(), ::testing::ElementsAre("default"));
  EXPECT_THAT(asked.scopes(0).grants(0).services(), ::testing::ElementsAre("seen-1", "seen-2"));
  // A caller's own scope stays: it is one more that has to show a service.
  ListRequest narrow;
  narrow.add_scopes();
  ASSERT_TRUE(CallAndWait<ListResponse>(guarded, &Registry::List, narrow).ok());
  EXPECT_EQ(registry.lists.last_request().scopes_size(), 2);
  // Who may read everything has no scope.
  GuardedRegistry all(&registry, access_, Token("all"));
  ASSERT_TRUE(CallAndWait<ListResponse>(all, &Registry::List, ListRequest()).ok());
  EXPECT_EQ(registry.lists.last_request().scopes_size(), 0);
}

TEST_F(VisibleListingTest, ManyServicesAreListedInParts) {
  StoreHarness store;
  const std::string session = Open(store, "fleet", "agent");
  std::vector<Allow> allowed = {{"fleet", kRegister, "*"}};
  std::vector<std::string> expected;
  for (int i = 1000; i < 1500; ++i) {
    const std::string service = absl::StrCat("s-", i);
    EXPECT_TRUE(store.Register(session, MakeInstance(service, "id")).ok());
    EXPECT_TRUE(store.Register(session, MakeInstance(service + "-hidden", "id")).ok());
    allowed.push_back({"reader", kRead, service});
    expected.push_back(absl::StrCat("default/", service, "/id"));
  }
  access_->Update(MakeRules(allowed));
  for (const int size : {7, 1000}) {
    ListRequest request;
    request.set_page_size(size);
    EXPECT_THAT(List(store, "reader", request), ElementsAreArray(expected));
  }
}

TEST_F(VisibleListingTest, WhoMayReadNothingOfANamespaceSeesAnEmptyPage) {
  StoreHarness store;
  Fill(store);
  int pages = 0;
  ListRequest request;
  request.mutable_selector()->set_namespace_("elsewhere");
  EXPECT_THAT(List(store, "reader", request, &pages), IsEmpty());
  EXPECT_EQ(pages, 1);
  EXPECT_THAT(List(store, "fleet", ListRequest()), IsEmpty());
}

}  // namespace
}  // namespace failback
