#include "tests/simulate/players.h"

#include <poll.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "etcd/rpc.pb.h"
#include "failback/admin/v1/offline.pb.h"
#include "failback/agent/v1/agent.pb.h"
#include "failback/config/v1/access.pb.h"
#include "failback/etcd/v1/stored.pb.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "registry/base/log.h"
#include "tests/simulate/disk/seeded_entropy.h"
#include "tests/simulate/story_heap.h"

namespace failback::simulate {
namespace {

// Of a story. Others run on this machine, so what hangs is seen by the processor's time, and what
// sleeps for ever by the clock on the wall.
constexpr itimerval kLongest = {{}, {120, 0}};
constexpr unsigned kLongestWait = 3600;
// With what a process ends that is not to play the next story.
constexpr int kNext = 42;

bool WriteAll(int fd, const void* bytes, size_t size) {
  const char* at = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t written = write(fd, at, size);
    if (written <= 0) return false;
    at += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

bool ReadAll(int fd, void* bytes, size_t size) {
  char* at = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t got = read(fd, at, size);
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

void SendText(int fd, const char* text, size_t size) {
  WriteAll(fd, &size, sizeof(size));
  WriteAll(fd, text, size);
}

// An outcome as text: fields and the timeline's lines, each on a line.
std::string Encode(const Outcome& outcome) {
  const auto one_line = [](std::string text) {
    for (char& c : text) {
      if (c == '\n') c = ' ';
    }
    return text;
  };
  std::string text =
      absl::StrCat(outcome.failed, "\n", one_line(outcome.failure), "\n", outcome.simulated_ms,
                   "\n", outcome.messages, "\n", outcome.commits, "\n", outcome.settled_ms, "\n",
                   outcome.bound_ms, "\n", outcome.digest);
  for (const std::string& line : outcome.timeline) absl::StrAppend(&text, "\n", one_line(line));
  return text;
}

Outcome Decode(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines.resize(std::max<size_t>(lines.size(), 8));
  Outcome outcome;
  outcome.failed = lines[0];
  outcome.failure = lines[1];
  outcome.simulated_ms = std::atoll(lines[2].c_str());
  outcome.messages = std::atoll(lines[3].c_str());
  outcome.commits = std::atoll(lines[4].c_str());
  outcome.settled_ms = std::atoll(lines[5].c_str());
  outcome.bound_ms = std::atoll(lines[6].c_str());
  outcome.digest = std::strtoull(lines[7].c_str(), nullptr, 10);
  outcome.timeline.assign(lines.begin() + 8, lines.end());
  return outcome;
}

std::string PlayHere(const Order& order) {
  setitimer(ITIMER_PROF, &kLongest, nullptr);
  alarm(kLongestWait);
  SeedEntropy(order.seed ^ 0xe17);
  Script script = MakeScript(order.seed, order.large);
  if (order.shortened) {
    std::vector<int> kept;
    for (size_t i = 0; i < script.operations.size() && i < order.kept.size(); ++i) {
      if (order.kept[i]) kept.push_back(static_cast<int>(i));
    }
    script = Keep(script, kept);
  }
  return Encode(Story(script, order.traced).Play());
}

// Protobuf describes the messages of a file, and of those that it imports, when it is first asked.
void Describe(const google::protobuf::FileDescriptor* file) {
  for (int i = 0; i < file->dependency_count(); ++i) Describe(file->dependency(i));
  for (int i = 0; i < file->message_type_count(); ++i) {
    google::protobuf::MessageFactory::generated_factory()
        ->GetPrototype(file->message_type(i))
        ->GetReflection();
  }
}

// What is made once, when it is first asked for, is made before the first story: protobuf's
// descriptors, SQLite's tables, what Abseil knows of its thread, the shards of timers. Two stories
// in which nothing goes wrong ask for the most of it, one on disks and one on etcd.
void MakeWhatIsMadeOnce(bool large) {
  for (const auto* file :
       {agent::v1::DrainResponse::descriptor()->file(), config::v1::Policy::descriptor()->file(),
        etcdserverpb::TxnRequest::descriptor()->file(), etcd::v1::Meta::descriptor()->file(),
        admin::v1::SetOfflineRequest::descriptor()->file()}) {
    Describe(file);
  }
  SimulatedClock clock;
  std::vector<std::unique_ptr<Process>> processes;
  for (int i = 0; i < (large ? 200 : 60); ++i) {
    processes.push_back(std::make_unique<Process>("", &clock));
    processes.back()->After(absl::ZeroDuration(), [] {});
  }
  clock.Advance(absl::Seconds(1));
  processes.clear();
  for (const bool etcd : {false, true}) {
    Script script;
    do {
      script = MakeScript(script.seed + 1, /*large=*/false);
    } while (script.etcd != etcd || (!etcd && !(script.sqlite && script.journals[0])));
    script.secured = true;
    script.permanent = 0;
    script.gateways = 0;
    script.operations.erase(std::remove_if(script.operations.begin(), script.operations.end(),
                                           [](const Operation& operation) {
                                             return operation.act > Act::kUnsubscribe;
                                           }),
                            script.operations.end());
    SeedEntropy(script.seed);
    Story(script, /*traced=*/false).Play();
  }
}

// Plays until there is no order any more. A story that leaves something is the last of its process.
[[noreturn]] void PlayOrders(int socket) {
  static Order order;
  const HeapMark begin;
  while (ReadAll(socket, &order, sizeof(order))) {
    {
      const std::string text = PlayHere(order);
      alarm(0);  // it may have to wait for the next
      SendText(socket, text.data(), text.size());
    }
    if (order.alone || !begin.reached()) std::_Exit(kNext);
    begin.GoBack();
  }
  std::_Exit(0);
}

// A player's life: a process that plays, and another one when that has ended. Nothing here may
// allocate.
[[noreturn]] void Serve(int socket) {
  for (;;) {
    const pid_t child = fork();
    if (child == 0) PlayOrders(socket);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) std::abort();
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNext) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) std::_Exit(0);
    char text[160];
    const bool hangs =
        WIFSIGNALED(status) && (WTERMSIG(status) == SIGALRM || WTERMSIG(status) == SIGPROF);
    const int size = hangs
                         ? std::snprintf(text, sizeof(text), "hang\nno end")
                         : std::snprintf(text, sizeof(text), "crash\nended with status %d", status);
    SendText(socket, text, static_cast<size_t>(size));
  }
}

}  // namespace

void FixAddresses(char** argv) {
  const int persona = personality(0xffffffff);
  if (persona == -1 || (persona & ADDR_NO_RANDOMIZE) != 0) return;
  if (personality(static_cast<unsigned long>(persona) | ADDR_NO_RANDOMIZE) == -1) return;
  setenv("LD_BIND_NOW", "1", 1);  // symbols are looked up once, not in each child
  execv("/proc/self/exe", argv);
}

Players::Players(int count, bool large) {
  SetLogSink(LogLevel::kError, [](LogLevel, const std::string&, const LogFields&) {});
  MakeWhatIsMadeOnce(large);
  players_.resize(static_cast<size_t>(count));
  for (Player& player : players_) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) std::abort();
    player.pid = fork();
    if (player.pid == 0) {
      close(sockets[0]);
      Serve(sockets[1]);
    }
    close(sockets[1]);
    player.socket = sockets[0];
  }
}

Players::~Players() {
  for (const Player& player : players_) close(player.socket);
  for (const Player& player : players_) {
    waitpid(player.pid, nullptr, 0);
  }
}

void Players::Collect() {
  std::vector<pollfd> waits;
  std::vector<Player*> busy;
  for (Player& player : players_) {
    if (!player.busy) continue;
    waits.push_back({player.socket, POLLIN, 0});
    busy.push_back(&player);
  }
  if (busy.empty() || poll(waits.data(), waits.size(), -1) <= 0) return;
  for (size_t i = 0; i < busy.size(); ++i) {
    if (waits[i].revents == 0) continue;
    size_t size = 0;
    std::string text;
    if (!ReadAll(busy[i]->socket, &size, sizeof(size))) std::abort();
    text.resize(size);
    if (!ReadAll(busy[i]->socket, text.data(), size)) std::abort();
    busy[i]->busy = false;
    const Then then = std::move(busy[i]->then);
    then(busy[i]->order, Decode(text));
    return;
  }
}

void Players::Play(const Order& order, Then then) {
  for (;;) {
    for (Player& player : players_) {
      if (player.busy) continue;
      player.busy = true;
      player.order = order;
      player.then = std::move(then);
      WriteAll(player.socket, &player.order, sizeof(player.order));
      return;
    }
    Collect();
  }
}

void Players::Finish() {
  for (;;) {
    bool busy = false;
    for (const Player& player : players_) busy = busy || player.busy;
    if (!busy) return;
    Collect();
  }
}

}  // namespace failback::simulate
