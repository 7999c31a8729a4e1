#include "tests/bench/load.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace failback {
namespace {

// A benchmark that waits longer for one call has gone wrong.
constexpr absl::Duration kStuck = absl::Seconds(60);

void DieIfFailed(const char* method, const grpc::Status& status) {
  if (!status.ok()) {
    Die(absl::StrCat(method, ": ", static_cast<int>(status.error_code()), " ",
                     status.error_message()));
  }
}

// One after the other through the same place.
struct UnarySlot {
  std::optional<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  grpc::ByteBuffer answer;
  grpc::Status status;
  double began = 0;
};

}  // namespace

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Die(const std::string& message) {
  std::fprintf(stderr, "benchmark failed: %s\n", message.c_str());
  std::fflush(stderr);
  std::exit(1);
}

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  return NewChannel(address, grpc::InsecureChannelCredentials());
}

std::shared_ptr<grpc::Channel> NewChannel(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

grpc::ByteBuffer CallOnce(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                          const grpc::ByteBuffer& request) {
  grpc::ByteBuffer answer;
  RunUnary(channel, method, {request}, 1, [&](const grpc::ByteBuffer& bytes) {
    answer = bytes;
    return true;
  });
  return answer;
}

LoadResult RunUnary(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                    const std::vector<grpc::ByteBuffer>& requests, int in_flight,
                    const AnswerCheck& check) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  std::vector<UnarySlot> slots(std::min<size_t>(in_flight, requests.size()));
  LoadResult result;
  result.latencies_us.reserve(requests.size());
  size_t sent = 0;
  size_t answered = 0;
  const auto send = [&](UnarySlot& slot) {
    slot.reader.reset();
    slot.context.emplace();
    slot.context->set_wait_for_ready(true);
    slot.context->set_deadline(absl::ToChronoTime(absl::Now() + kStuck));
    slot.began = NowSeconds();
    slot.reader = stub.PrepareUnaryCall(&*slot.context, method, requests[sent++], &queue);
    slot.reader->StartCall();
    slot.reader->Finish(&slot.answer, &slot.status, &slot);
  };
  const double began = NowSeconds();
  for (UnarySlot& slot : slots) send(slot);
  void* tag;
  bool ok;
  while (answered < requests.size() && queue.Next(&tag, &ok)) {
    auto& slot = *static_cast<UnarySlot*>(tag);
    result.latencies_us.push_back((NowSeconds() - slot.began) * 1e6);
    ++answered;
    DieIfFailed(method, slot.status);
    if (!check(slot.answer)) Die(absl::StrCat(method, ": the answer is not what was asked for"));
    if (sent < requests.size()) send(slot);
  }
  result.seconds = NowSeconds() - began;
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return result;
}

LoadResult RunPaced(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                    const std::vector<grpc::ByteBuffer>& requests, double per_second,
                    const std::function<void(size_t)>& on_send) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  std::deque<UnarySlot> slots;
  std::vector<UnarySlot*> idle;
  LoadResult result;
  result.latencies_us.reserve(requests.size());
  const double began = NowSeconds();
  const absl::Time began_at = absl::Now();
  size_t sent = 0;
  while (result.latencies_us.size() < requests.size()) {
    for (; sent < requests.size(); ++sent) {
      const double due = began + static_cast<double>(sent) / per_second;
      if (due > NowSeconds()) break;
      if (idle.empty()) idle.push_back(&slots.emplace_back());
      UnarySlot& slot = *idle.back();
      idle.pop_back();
      slot.reader.reset();
      slot.context.emplace();
      slot.context->set_deadline(absl::ToChronoTime(absl::Now() + kStuck));
      slot.began = due;
      if (on_send != nullptr) on_send(sent);
      slot.reader = stub.PrepareUnaryCall(&*slot.context, method, requests[sent], &queue);
      slot.reader->StartCall();
      slot.reader->Finish(&slot.answer, &slot.status, &slot);
    }
    const absl::Time next = sent == requests.size()
                                ? absl::InfiniteFuture()
                                : began_at + absl::Seconds(static_cast<double>(sent) / per_second);
    void* tag;
    bool ok;
    if (queue.AsyncNext(&tag, &ok, absl::ToChronoTime(next)) != grpc::CompletionQueue::GOT_EVENT) {
      continue;
    }
    auto& slot = *static_cast<UnarySlot*>(tag);
    DieIfFailed(method, slot.status);
    result.latencies_us.push_back((NowSeconds() - slot.began) * 1e6);
    idle.push_back(&slot);
  }
  result.seconds = NowSeconds() - began;
  queue.Shutdown();
  void* tag;
  bool ok;
  while (queue.Next(&tag, &ok)) {
  }
  return result;
}

LoadResult RunStreams(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                      const std::vector<grpc::ByteBuffer>& requests, int streams, int window,
                      const AnswerCheck& check) {
  struct Stream {
    std::unique_ptr<grpc::ClientContext> context = std::make_unique<grpc::ClientContext>();
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
    grpc::ByteBuffer answer;
    grpc::Status status;
    std::deque<double> began;
    bool writing = false;
    int unanswered = 0;
    // Addresses of these are the tags.
    char start = 0, write = 0, read = 0, finish = 0;
  };
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  std::vector<Stream> all(streams);
  const int share = std::max(1, window / streams);
  LoadResult result;
  result.latencies_us.reserve(requests.size());
  size_t sent = 0;
  size_t answered = 0;
  const auto pump = [&](Stream& stream) {
    if (stream.writing || stream.unanswered >= share || sent == requests.size()) return;
    stream.writing = true;
    ++stream.unanswered;
    stream.began.push_back(NowSeconds());
    stream.call->Write(requests[sent++], &stream.write);
  };
  int open = 0;
  for (Stream& stream : all) {
    stream.call = stub.PrepareCall(stream.context.get(), method, &queue);
    stream.call->StartCall(&stream.start);
    ++open;
  }
  double began = NowSeconds();
  int started = 0;
  bool finishing = false;
  void* tag;
  bool ok;
  while (open > 0 && queue.Next(&tag, &ok)) {
    for (Stream& stream : all) {
      if (tag == &stream.start) {
        if (!ok) Die(absl::StrCat(method, ": the stream did not start"));
        stream.call->Read(&stream.answer, &stream.read);
        if (++started < streams) break;
        began = NowSeconds();
        for (Stream& each : all) pump(each);
      } else if (tag == &stream.write) {
        stream.writing = false;
        pump(stream);
      } else if (tag == &stream.read && ok) {
        result.latencies_us.push_back((NowSeconds() - stream.began.front()) * 1e6);
        stream.began.pop_front();
        --stream.unanswered;
        ++answered;
        if (!check(stream.answer)) Die(absl::StrCat(method, ": a wrong answer"));
        if (answered == requests.size()) {
          result.seconds = NowSeconds() - began;
          finishing = true;
          for (Stream& each : all) each.context->TryCancel();
        }
        stream.call->Read(&stream.answer, &stream.read);
        pump(stream);
      } else if (tag == &stream.read) {
        stream.call->Finish(&stream.status, &stream.finish);
      } else if (tag == &stream.finish) {
        if (!finishing) DieIfFailed(method, stream.status);
        --open;
      } else {
        continue;
      }
      break;
    }
  }
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  if (answered < requests.size()) Die(absl::StrCat(method, ": streams ended early"));
  return result;
}

struct Streams::Tag {
  enum Kind { kStart, kWrite, kRead, kFinish } kind;
  Stream* stream;
};

struct Streams::Stream {
  explicit Stream(int number) : number(number) {}
  const int number;
  int connection = 0;
  grpc::ClientContext context;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
  grpc::ByteBuffer message;
  grpc::Status status;
  std::deque<grpc::ByteBuffer> waiting;
  bool writing = true;  // until started
  bool only_one = false;
  bool ended = false;
  bool silent = false;  // it was opened with its first message, and not answered yet
  Tag start{Tag::kStart, this};
  Tag write{Tag::kWrite, this};
  Tag read{Tag::kRead, this};
  Tag finish{Tag::kFinish, this};
};

void Streams::Connect(const std::string& address, int connections) {
  const std::vector<std::string> addresses = absl::StrSplit(address, ',');
  for (int i = 0; i < connections; ++i) {
    stubs_.push_back(
        std::make_unique<grpc::GenericStub>(NewChannel(addresses[i % addresses.size()])));
  }
}

Streams::Stream& Streams::Prepare(const char* method, int connection) {
  const auto number = streams_.size();
  streams_.push_back(std::make_unique<Stream>(static_cast<int>(number)));
  Stream& stream = *streams_.back();
  stream.connection = connection;
  stream.context.set_wait_for_ready(true);
  stream.call = stubs_[connection]->PrepareCall(&stream.context, method, &queue_);
  ++open_;
  return stream;
}

Streams::Streams(const std::string& address, const char* method, int count, int connections,
                 const grpc::ByteBuffer* request, OnMessage on_message)
    : on_message_(std::move(on_message)) {
  Connect(address, connections);
  for (int i = 0; i < count; ++i) {
    Stream& stream = Prepare(method, i % connections);
    if (request != nullptr) stream.waiting.push_back(*request);
    stream.only_one = request != nullptr;
    stream.call->StartCall(&stream.start);
  }
}

Streams::Streams(const std::string& address, const char* method, int count, int connections,
                 std::function<grpc::ByteBuffer(int stream)> first, OnMessage on_message)
    : on_message_(std::move(on_message)), method_(method), count_(count), first_(std::move(first)) {
  Connect(address, connections);
  for (int i = 0; i < kMostSilent * connections; ++i) OpenNext(i % connections);
}

void Streams::OpenNext(int connection) {
  if (static_cast<int>(streams_.size()) >= count_) return;
  Stream& stream = Prepare(method_, connection);
  stream.silent = true;
  // Corked, a call begins with its first write, and its start has no event of its own.
  stream.context.set_initial_metadata_corked(true);
  stream.call->StartCall(&stream.start);
  stream.call->Write(first_(stream.number), &stream.write);
  stream.call->Read(&stream.message, &stream.read);
}

Streams::~Streams() {
  closing_ = true;
  for (auto& stream : streams_) stream->context.TryCancel();
  while (open_ > 0 && Step(absl::Now() + kStuck)) {
  }
  queue_.Shutdown();
  void* tag;
  bool ok;
  while (queue_.Next(&tag, &ok)) {
  }
}

void Streams::Send(int number, grpc::ByteBuffer message) {
  Stream& stream = *streams_[number];
  if (stream.ended) Die("a stream has ended");
  if (stream.writing) {
    stream.waiting.push_back(std::move(message));
  } else {
    stream.writing = true;
    stream.call->Write(message, &stream.write);
  }
}

bool Streams::RunUntil(const std::function<bool()>& done, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!done()) {
    if (!Step(deadline)) return done();
  }
  return true;
}

void Streams::RunFor(absl::Duration duration) {
  const absl::Time deadline = absl::Now() + duration;
  while (Step(deadline)) {
  }
}

bool Streams::Step(absl::Time deadline) {
  void* raw;
  bool ok;
  if (queue_.AsyncNext(&raw, &ok, absl::ToChronoTime(deadline)) !=
      grpc::CompletionQueue::GOT_EVENT) {
    return false;
  }
  const Tag& tag = *static_cast<Tag*>(raw);
  Stream& stream = *tag.stream;
  switch (tag.kind) {
    case Tag::kStart:
      stream.call->Read(&stream.message, &stream.read);
      [[fallthrough]];
    case Tag::kWrite:
      stream.writing = ok && !stream.waiting.empty();
      if (!stream.writing) break;
      if (stream.only_one) {
        stream.call->WriteLast(stream.waiting.front(), grpc::WriteOptions(), &stream.write);
      } else {
        stream.call->Write(stream.waiting.front(), &stream.write);
      }
      stream.waiting.pop_front();
      break;
    case Tag::kRead:
      if (ok) {
        if (std::exchange(stream.silent, false)) OpenNext(stream.connection);
        on_message_(stream.number, stream.message);
        stream.call->Read(&stream.message, &stream.read);
      } else {
        stream.ended = true;
        stream.call->Finish(&stream.status, &stream.finish);
      }
      break;
    case Tag::kFinish:
      --open_;
      // What was refused is not measured.
      if (!closing_ && !stream.status.ok()) {
        Die(absl::StrCat("a stream has ended: ", stream.status.error_message()));
      }
      break;
  }
  return true;
}

}  // namespace failback
