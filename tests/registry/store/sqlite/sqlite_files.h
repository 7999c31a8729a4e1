// Store files that a test opens, copies, and changes behind the store's back.

#ifndef FAILBACK_TESTS_REGISTRY_STORE_SQLITE_SQLITE_FILES_H_
#define FAILBACK_TESTS_REGISTRY_STORE_SQLITE_SQLITE_FILES_H_

#include <sqlite3.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/registry/store/files.h"
#include "tests/util/timers.h"

namespace failback {

inline StoreRegistry::Options On(const std::string& path,
                                 Durability durability = Durability::kFull) {
  StoreRegistry::Options options;
  options.uri = "sqlite://" + path;
  options.durability = durability;
  return options;
}

// Runs SQL on the file as another program would.
inline void Sql(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  char* error = nullptr;
  EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &error), SQLITE_OK)
      << (error == nullptr ? "" : error);
  sqlite3_free(error);
  sqlite3_close(db);
}

// The error of opening `path`, which must be one line that names it.
inline absl::Status OpenError(const std::string& path) {
  auto timer = NewTimer();
  StoreRegistry::Options options = On(path);
  options.timer = timer.get();
  const absl::Status status = StoreRegistry::Open(options).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(path));
  EXPECT_THAT(std::string(status.message()), ::testing::Not(::testing::HasSubstr("\n")));
  return status;
}

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_STORE_SQLITE_SQLITE_FILES_H_
