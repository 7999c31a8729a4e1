// A Watch stream's messages, which may be anything: those of a client at the server's machine, with
// a registry behind it that begins and ends what it likes; and those of a server at a client.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/event.h"
#include "registry/model/event_reader.h"
#include "registry/model/messages.h"
#include "registry/watch/conflator.h"
#include "registry/watch/watch_flow.h"
#include "registry/watch/watch_items.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

class FlowSession {
 public:
  FlowSession() : flow_(WatchFlow::Framing::kWatch, Limits()) {}

  void Step(FuzzInput* input) {
    switch (input->Byte() % 8) {
      case 0: {
        WatchRequest request;
        input->Fill(&request);
        if (!flow_.wants_request()) return;
        const absl::Status status = flow_.Receive(std::move(request));
        if (!status.ok()) flow_.Abort(status);
        return;
      }
      case 1:
        return Subscribe(1 + input->Byte() % 4);
      case 2:
        return flow_.HalfClose();
      case 3:
        return flow_.Drain(absl::UnavailableError("old"));
      case 4:
        return CarryOut(input);
      case 5:
        return Notify(input);
      default:
        return Write();
    }
  }

  // The stream comes to its end, whatever has been.
  void End() {
    for (auto& [id, revision] : begun_) flow_.OnEnd(id, absl::OkStatus());
    begun_.clear();
    flow_.HalfClose();
    for (int i = 0; i < 100000 && !flow_.Finished().has_value(); ++i) {
      if (auto step = flow_.NextStep(); step.has_value() && step->subscribe.has_value()) {
        flow_.Begun(step->id, nullptr);
        flow_.OnEnd(step->id, absl::OkStatus());
      }
      Write();
    }
    if (!flow_.Finished().has_value()) Die("the stream does not end");
    flow_.TakeStreams();
    if (flow_.open() != 0 || flow_.waiting_bytes() != 0 || flow_.own_bytes() != 0) {
      Die("what is counted does not go away");
    }
  }

 private:
  static WatchFlow::Limits Limits() {
    WatchFlow::Limits limits;
    limits.subscriptions = 20;
    limits.own_bytes = 20000;
    limits.begin_below = 2000;
    limits.message_items = 3;
    return limits;
  }

  // A valid message.
  void Subscribe(int count) {
    if (!flow_.wants_request()) return;
    WatchRequest request;
    for (int i = 0; i < count; ++i) {
      request.add_commands()->set_watch_id(next_ += 1);
      request.mutable_commands(i)->mutable_subscribe();
    }
    if (!flow_.Receive(std::move(request)).ok()) flow_.Abort(absl::InternalError("used before"));
  }

  void CarryOut(FuzzInput* input) {
    auto step = flow_.NextStep();
    if (!step.has_value()) return;
    if (!step->subscribe.has_value()) {
      begun_.erase(step->id);
      return;
    }
    next_ = std::max(next_, step->id);
    const int how = input->Byte() % 4;
    if (how == 0) flow_.OnEnd(step->id, absl::PermissionDeniedError("no"));
    if (flow_.Begun(step->id, nullptr).open && how != 0) begun_[step->id] = 0;
    positions_[step->id] = EventReader(step->subscribe->epoch(), step->subscribe->revision());
  }

  void Notify(FuzzInput* input) {
    if (begun_.empty()) return;
    auto it = begun_.begin();
    std::advance(it, input->Byte() % begun_.size());
    const int what = input->Byte();
    const uint64_t id = it->first;
    if (what % 8 == 0) {
      flow_.OnEnd(id, absl::AbortedError("replaced"));
      begun_.erase(it);
      return;
    }
    std::vector<Blob> instances;
    for (int i = what % 3; i >= 0; --i) {
      ServiceInstance instance = MakeInstance(absl::StrCat("i", i), 1 + what);
      (*instance.mutable_metadata())["k"] = std::string(input->Number() % 1000, 'v');
      instances.emplace_back(CanonicalInstance(instance));
    }
    const uint64_t base = it->second;
    const EventPtr event =
        base == 0 || what % 8 == 1
            ? Event::Snapshot(1, ++it->second + 1000, SetFlags(), instances, {1, 1 << 20})
            : Event::Delta(1, base + 1000, ++it->second + 1000, SetFlags(), instances, {});
    flow_.OnEvent(id, event, Conflator::ChangesOf(*event));
  }

  void Write() {
    std::string bytes;
    for (const WatchFlow::Piece& piece : flow_.Take()) {
      bytes += piece.head;
      if (piece.event != nullptr) bytes += piece.event->EncodedPart(piece.part);
    }
    WatchResponse response;
    if (!response.ParseFromString(bytes)) Die("what is written is no WatchResponse");
    const absl::Status read = ForEachWatchItem(bytes, [&](const WatchItemView& item) {
      if (ended_[item.watch_id]) Die(absl::StrCat("an item after the end of ", item.watch_id));
      if (item.end.has_value()) {
        ended_[item.watch_id] = true;
      } else if (auto event = positions_[item.watch_id].Read(item.event); !event.ok()) {
        Die(absl::StrCat("what does not follow: ", event.status().ToString()));
      }
      return absl::OkStatus();
    });
    if (!read.ok()) Die(read.ToString());
  }

  WatchFlow flow_;
  uint64_t next_ = 0;
  std::map<uint64_t, uint64_t> begun_;  // and how many events each had
  std::map<uint64_t, EventReader> positions_;
  std::map<uint64_t, bool> ended_;
};

void PlayItems(FuzzInput* input) {
  const std::string bytes = input->Rest();
  std::map<uint64_t, EventReader> readers;
  // Whatever it says, it is read within its bytes.
  ForEachWatchItem(bytes, [&](const WatchItemView& item) {
    if (item.watch_id == 0) Die("an item without a number");
    if (!item.end.has_value()) readers[item.watch_id].Read(item.event).IgnoreError();
    return absl::OkStatus();
  }).IgnoreError();
}

}  // namespace
}  // namespace failback

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  failback::FuzzInput input(data, size);
  if (input.Byte() % 2 == 0) {
    failback::PlayItems(&input);
    return 0;
  }
  failback::FlowSession session;
  while (!input.empty()) session.Step(&input);
  session.End();
  return 0;
}
