// One call at each of several registries, and all their answers.
//
//   FanOut<DrainResponse>(
//       members, [&](size_t i, auto& member, Callback<DrainResponse> done) { member.Drain(…); },
//       [](Answers<DrainResponse> answers) { … });
//
// Thread safety: the answers may come on any threads.

#ifndef FAILBACK_REGISTRY_FAILBACK_FAN_OUT_H_
#define FAILBACK_REGISTRY_FAILBACK_FAN_OUT_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "registry/registry.h"
#include "retry/mutex.h"

namespace failback {

template <typename Response>
using Answers = std::vector<absl::StatusOr<Response>>;

// Makes one call at every member: `call(index, registry, callback)`. When the last has answered,
// `done` gets their answers in the order of the members.
template <typename Response, typename Members, typename Call>
void FanOut(const Members& members, Call call,
            absl::AnyInvocable<void(Answers<Response>) &&> done) {
  struct Gathered {
    absl::AnyInvocable<void(Answers<Response>) &&> done;  // used once, by the last answer
    Mutex mu;
    Answers<Response> answers ABSL_GUARDED_BY(mu);
    size_t missing ABSL_GUARDED_BY(mu);
  };
  const size_t size = members.size();
  auto all = std::make_shared<Gathered>();
  {
    MutexLock lock(&all->mu);
    all->done = std::move(done);
    all->answers.assign(size, absl::UnknownError("no answer"));
    all->missing = size;
  }
  for (size_t i = 0; i < size; ++i) {
    call(i, *members[i].registry, Callback<Response>([all, i](absl::StatusOr<Response> answer) {
           Answers<Response> answers;
           {
             MutexLock lock(&all->mu);
             all->answers[i] = std::move(answer);
             if (--all->missing > 0) return;
             answers = std::move(all->answers);
           }
           std::move(all->done)(std::move(answers));
         }));
  }
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_FAN_OUT_H_
