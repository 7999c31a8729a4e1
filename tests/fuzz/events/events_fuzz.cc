// What a client does with messages from a server that may be anything: the order check, the reader,
// the conflator and the set that an agent keeps. And canonical spellings there and back.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/event.h"
#include "registry/model/event_order.h"
#include "registry/model/event_reader.h"
#include "registry/model/messages.h"
#include "registry/watch/conflator.h"
#include "registry/watch/run_pool.h"
#include "registry/watch/watched_set.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/registry/message_listener.h"

namespace failback {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

// Most instances that are made up have none.
template <typename Instances>
void NameServices(Instances* instances) {
  for (auto& instance : *instances) {
    if (instance.key().service().empty()) instance.mutable_key()->set_service("s");
  }
}

void PlayEvents(FuzzInput* input) {
  RunPool runs;
  const uint64_t epoch = input->Byte() % 3;
  const uint64_t revision = epoch == 0 ? 0 : input->Byte() % 8;
  EventReader reader(epoch, revision);
  Conflator conflator(epoch, revision);
  EventOrder sent(epoch, revision);
  WatchedSet set(input->Byte() % 2 == 0);
  while (!input->empty()) {
    SubscribeResponse message;
    input->Fill(&message);
    if (message.has_snapshot()) NameServices(message.mutable_snapshot()->mutable_instances());
    if (message.has_delta()) NameServices(message.mutable_delta()->mutable_upserts());
    const std::string bytes = message.SerializeAsString();
    const absl::StatusOr<EventPtr> read = reader.Read(bytes);
    // What a parser does not take is not read.
    if (read.ok() && !message.ParseFromString(bytes)) Die("what is no message was read");
    const int how = input->Byte();
    if (!read.ok()) return;
    EventPtr event = *read;
    if (event == nullptr) continue;
    set.Apply(*event);
    set.Current();
    if (event->is_snapshot() && how / 2 % 2 == 1) {
      std::vector<Blob> instances;
      event->ForEachInstance([&](const Blob& instance) { instances.push_back(instance); });
      event = Event::SharedSnapshot(event->epoch(), event->revision(), event->flags(),
                                    runs.Split(instances),
                                    {static_cast<size_t>(1 + how / 4 % 4), 1000});
    }
    if (!conflator.Add(event).ok()) return;
    if (how % 2 == 0) continue;
    while (const Conflator::Message taken = conflator.Take()) {
      SubscribeResponse next;
      if (!next.ParseFromString(taken.event->EncodedPart(taken.part))) Die("a part is no message");
      if (const absl::Status status = CheckOrder(&sent, next); !status.ok()) {
        Die(absl::StrCat("the conflator tells what does not follow: ", status.ToString(), "\n",
                         next.ShortDebugString()));
      }
    }
  }
}

void PlayCanonical(FuzzInput* input) {
  ServiceInstance instance;
  input->Fill(&instance);
  const std::string canonical = CanonicalInstance(instance);
  ServiceInstance again;
  if (!again.ParseFromString(canonical)) Die("a canonical instance is none");
  if (CanonicalInstance(again) != canonical) Die("canonical is not the same twice");
  InstanceKey key;
  if (ParseCanonicalKey(input->Text(1000), &key)) CanonicalKey(key);
  rpc::v1::Status status;
  input->Fill(&status);
  const absl::Status read = StatusFromProto(status);
  ReasonOf(read);
  RetryDelayOf(read);
  ReasonMetadata(read, "generation");
  StatusToProto(read);
}

}  // namespace
}  // namespace failback

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  failback::FuzzInput input(data, size);
  if (input.Byte() % 2 == 0) {
    failback::PlayEvents(&input);
  } else {
    failback::PlayCanonical(&input);
  }
  return 0;
}
