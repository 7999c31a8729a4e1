#include "agent/ctl/bulk_intents.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/ctl/instance_file.h"
#include "agent/ctl/terminal.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using registry::v1::IntentResult;
using registry::v1::ServiceInstance;

// Below what servers take by default (1,000), and small enough that the bar moves.
constexpr size_t kBatch = 500;
// Refusals that are printed one by one.
constexpr int kMaxTold = 20;

// Whether a refusal is about the server and not about the instance.
bool IsOfServer(const absl::Status& status) {
  const registry::v1::ErrorReason reason = ReasonOf(status);
  return reason == registry::v1::ERROR_REASON_STORE_READ_ONLY ||
         reason == registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE;
}

class Bulk {
 public:
  Bulk(const BulkWork& work, const std::vector<ServiceInstance>& instances)
      : work_(work), instances_(instances) {}

  absl::Status Send(const SendBatch& send) {
    Progress progress(work_.doing, static_cast<int64_t>(instances_.size()));
    for (size_t begin = 0; begin < instances_.size(); begin += kBatch) {
      const size_t end = std::min(begin + kBatch, instances_.size());
      BulkResults results = send(instances_.data() + begin, instances_.data() + end);
      if (!results.ok()) return results.status();
      if (results->size() != static_cast<int>(end - begin)) {
        return absl::InternalError(
            absl::StrCat(results->size(), " results for ", end - begin, " instances"));
      }
      for (IntentResult& result : *results) results_.push_back(std::move(result));
      progress.Set(static_cast<int64_t>(end));
    }
    return absl::OkStatus();
  }

  // Prints each refusal on stderr, up to a number; returns how many there are.
  int TellRefusals() const {
    int others = 0;
    int alike = 0;  // for a reason that is the server's: the first speaks for all
    for (size_t i = 0; i < results_.size(); ++i) {
      const absl::Status status = RefusalOf(results_[i], /*advice=*/"");
      if (status.ok()) continue;
      if (IsOfServer(status) ? ++alike > 1 : ++others > kMaxTold) continue;
      std::fprintf(stderr, "failbackctl: %s: %s: %s\n", work_.command.c_str(),
                   FormatKey(instances_[i].key()).c_str(),
                   status.ToString(absl::StatusToStringMode::kWithNoExtraData).c_str());
    }
    if (alike > 1) {
      std::fprintf(stderr, "failbackctl: %s: %d more were refused for the same reason\n",
                   work_.command.c_str(), alike - 1);
    }
    if (others > kMaxTold) {
      std::fprintf(stderr, "failbackctl: %s: %d more were refused\n", work_.command.c_str(),
                   others - kMaxTold);
    }
    return others + alike;
  }

  const std::vector<IntentResult>& results() const { return results_; }

 private:
  const BulkWork& work_;
  const std::vector<ServiceInstance>& instances_;
  std::vector<IntentResult> results_;
};

}  // namespace

int RunBulk(const BulkWork& work, const SendBatch& send, CtlContext* context) {
  const absl::StatusOr<std::vector<ServiceInstance>> instances =
      ReadInstanceFile(work.file, work.default_namespace);
  if (!instances.ok()) {
    std::fprintf(stderr, "failbackctl: %s: %s\n", work.command.c_str(),
                 std::string(instances.status().message()).c_str());
    return kCtlUsage;
  }
  Bulk bulk(work, *instances);
  const absl::Status status = bulk.Send(send);
  const int refused = bulk.TellRefusals();
  const int shown = context->ShowList(
      work.command,
      absl::StrCat(work.done, " ", bulk.results().size() - refused, " of ", instances->size(),
                   instances->size() == 1 ? " instance\n" : " instances\n"),
      bulk.results());
  if (!status.ok()) return context->Report(work.command, status);
  return refused == 0 ? shown : kCtlFailed;
}

}  // namespace failback
