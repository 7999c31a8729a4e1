// What a client does with messages from a server that may be anything: the order check, the
// conflator and the set that an agent keeps. And canonical spellings there and back.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "google/protobuf/util/message_differencer.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/watch/conflator.h"
#include "registry/watch/event_order.h"
#include "registry/watch/stored_snapshot.h"
#include "registry/watch/watched_set.h"
#include "tests/fuzz/fuzz_input.h"

namespace failback {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

// The snapshot that `event` says, lazy, in parts of `part` instances.
Conflator::Snapshot Lazy(const SubscribeResponse& event, size_t part, RunPool* runs) {
  std::vector<Blob> instances;
  for (const ServiceInstance& instance : event.snapshot().instances()) {
    instances.emplace_back(instance.SerializeAsString());
  }
  return std::make_shared<StoredSnapshot>(event.epoch(), event.revision(), SetFlags(), instances,
                                          StoredSnapshot::PartLimits{part, 1000}, runs);
}

void PlayEvents(FuzzInput* input) {
  RunPool runs;
  const uint64_t epoch = input->Byte() % 3;
  const uint64_t revision = epoch == 0 ? 0 : input->Byte() % 8;
  EventOrder received(epoch, revision);
  Conflator conflator(epoch, revision);
  EventOrder sent(epoch, revision);
  bool in_parts = false;
  WatchedSet set(input->Byte() % 2 == 0);
  while (!input->empty()) {
    auto event = std::make_shared<SubscribeResponse>();
    input->Fill(event.get());
    set.Apply(*event);
    set.Current();
    if (!received.Check(*event).ok()) return;
    const int how = input->Byte();
    const bool lazy = event->has_snapshot() && !in_parts && !received.in_snapshot() && how / 2 % 2;
    in_parts = received.in_snapshot();
    const absl::Status added =
        lazy ? conflator.Add(Lazy(*event, 1 + how / 4 % 4, &runs)) : conflator.Add(event);
    if (!added.ok()) return;
    if (how % 2 == 0) continue;
    while (const Conflator::Message message = conflator.Take()) {
      const Conflator::Event next =
          message.snapshot != nullptr ? message.snapshot->Part(message.part) : message.event;
      if (const absl::Status status = sent.Check(*next); !status.ok()) {
        Die("the conflator tells what does not follow: " + status.ToString() + "\n" +
            next->ShortDebugString());
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
