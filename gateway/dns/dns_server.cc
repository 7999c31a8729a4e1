#include "gateway/dns/dns_server.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <iterator>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "boost/asio/error.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ip/udp.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "gateway/dns/rate_limit.h"
#include "gateway/dns/responder.h"
#include "gateway/dns/tcp_connection.h"
#include "gateway/dns/tcp_connections.h"
#include "gateway/dns/udp_socket.h"
#include "registry/base/listen.h"
#include "registry/base/log.h"
#include "registry/model/errors.h"
#include "registry/security/guarded_registry.h"
#include "retry/mutex.h"

namespace failback::dns {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using asio::ip::udp;
using boost::system::error_code;

// Packets that are taken before others have their turn.
constexpr int kBatchesAtATime = 8;
// How often what has run out of time is looked for: something that waits, or only what is idle.
constexpr auto kWaitingTick = std::chrono::milliseconds(50);
constexpr auto kIdleTick = std::chrono::seconds(1);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// Explanations that wait for the thread or the registry.
constexpr size_t kMaxExplaining = 16;

int64_t NowNanos() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

class DnsServer::Impl : public std::enable_shared_from_this<DnsServer::Impl> {
 public:
  explicit Impl(const Options& options)
      : options_(options),
        zone_(options.zone),
        connections_(options.max_connections, [this](TcpConnection* from, std::string_view query) {
          return TakeQuery(from, query);
        }) {}

  absl::Status Bind();
  void Start(Registry* registry);
  void Stop();
  Statistics Stats() const;
  const std::vector<std::string>& addresses() const { return addresses_; }
  std::string domain() const { return zone_.domain.text(); }
  const std::string& zone() const { return options_.table.records.zone; }
  void Explain(std::string name, Callback<Explanation> done);

 private:
  struct UdpListener {
    UdpListener(asio::io_context& context, const udp& protocol, int fd, size_t answer_bytes)
        : socket(context, protocol, fd), packets(fd, answer_bytes) {}

    udp::socket socket;
    UdpSocket packets;
  };
  struct TcpListener {
    TcpListener(asio::io_context& context, const tcp& protocol, int fd)
        : acceptor(context, protocol, fd), pause(context) {}

    tcp::acceptor acceptor;
    asio::steady_timer pause;
  };
  // A query that waits for the registry.
  struct Waiting {
    std::string query;
    int64_t until_nanos = 0;
    UdpListener* listener = nullptr;  // it came by UDP
    UdpPeer peer;
    std::weak_ptr<TcpConnection> connection;
    std::string network;  // of the client
  };

  // A name that is to be explained.
  struct Explaining {
    std::string name;
    int64_t until_nanos = 0;
    Callback<Explanation> done;
  };

  absl::Status BindOne(const std::string& text);
  void ReadUdp(UdpListener* listener);
  void Accept(TcpListener* listener);
  bool TakeQuery(TcpConnection* connection, std::string_view query);
  // `proven`: it has this address.
  bool MayWait(std::string_view client, bool proven) const;
  void Wait(Waiting waiting);
  // Something has become known: those that wait are looked at again.
  void Wake();
  void AnswerWaiting(bool only_late);
  void ExplainWaiting();
  void Tick();

  const Options options_;
  Zone zone_;
  std::unique_ptr<GuardedRegistry> guarded_;
  std::vector<std::string> addresses_;
  std::vector<ListenAddress> listening_;
  asio::io_context context_{1};
  std::vector<std::unique_ptr<UdpListener>> udp_listeners_;
  std::vector<std::unique_ptr<TcpListener>> tcp_listeners_;
  mutable Mutex mu_;  // for the end of the two, while others look; and:
  std::vector<Explaining> explaining_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<ServiceTable> table_;
  std::unique_ptr<Responder> responder_;
  // The rest is the thread's.
  TcpConnections connections_;
  std::deque<Waiting> waiting_;
  bool explanation_waits_ = false;
  // How many of these each network has.
  std::unordered_map<std::string, size_t> waiting_of_;
  asio::steady_timer tick_{context_};
  std::vector<char> buffer_ = std::vector<char>(kMaxMessageBytes);
  std::atomic<int64_t> waiting_count_{0};
  std::atomic<bool> wake_posted_{false};
  std::thread thread_;
  bool stopped_ = false;
};

absl::Status DnsServer::Impl::Bind() {
  if (options_.table.timer == nullptr) return absl::InvalidArgumentError("needs a timer");
  // A buffer for an answer has as many bytes, and holds the header, a question and a cookie at
  // least.
  if (zone_.max_udp_bytes < 512) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_udp_bytes: ", zone_.max_udp_bytes, " is below 512"));
  }
  if (options_.max_connections < 1) {
    return absl::InvalidArgumentError("max_connections: 0 is below 1");
  }
  for (const std::string& text : options_.listen) {
    if (absl::Status status = BindOne(text); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status DnsServer::Impl::BindOne(const std::string& text) {
  ListenOptions listen_options;
  listen_options.allow_remote_plaintext = options_.allow_remote;
  absl::StatusOr<ListenAddress> listen = ListenAddress::Prepare(text, listen_options);
  if (!listen.ok()) return listen.status();
  const absl::StatusOr<std::vector<int>> sockets = listen->Listen();
  if (!sockets.ok()) return sockets.status();
  for (const int listening : *sockets) {
    const absl::StatusOr<int> packets = UdpSocket::BindBeside(listening);
    if (!packets.ok()) {
      return absl::Status(packets.status().code(),
                          absl::StrCat(listen->text(), ": ", packets.status().message()));
    }
    sockaddr_storage bound = {};
    socklen_t size = sizeof(bound);
    getsockname(*packets, reinterpret_cast<sockaddr*>(&bound), &size);
    const bool ipv6 = bound.ss_family == AF_INET6;
    const std::string address(AddressOf(bound));
    if (address != std::string(address.size(), '\0')) zone_.addresses.push_back(address);
    udp_listeners_.push_back(std::make_unique<UdpListener>(context_, ipv6 ? udp::v6() : udp::v4(),
                                                           *packets, zone_.max_udp_bytes));
    // The address keeps its own descriptor until it goes.
    const int own = dup(listening);
    if (own < 0) return absl::ResourceExhaustedError("no descriptor is free");
    tcp_listeners_.push_back(
        std::make_unique<TcpListener>(context_, ipv6 ? tcp::v6() : tcp::v4(), own));
  }
  addresses_.push_back(listen->text());
  listening_.push_back(*std::move(listen));
  return absl::OkStatus();
}

void DnsServer::Impl::Start(Registry* registry) {
  if (options_.access != nullptr) {
    guarded_ = std::make_unique<GuardedRegistry>(registry, options_.access, options_.reader);
    registry = guarded_.get();
  }
  MutexLock lock(&mu_);
  table_ = std::make_unique<ServiceTable>(registry, options_.table, [weak = weak_from_this()] {
    const std::shared_ptr<Impl> self = weak.lock();
    if (self == nullptr || self->wake_posted_.exchange(true)) return;
    asio::post(self->context_, [weak] {
      if (const std::shared_ptr<Impl> impl = weak.lock()) impl->Wake();
    });
  });
  responder_ = std::make_unique<Responder>(zone_, table_.get(), options_.responses_per_second);
  for (const auto& listener : udp_listeners_) ReadUdp(listener.get());
  for (const auto& listener : tcp_listeners_) Accept(listener.get());
  Tick();
  thread_ = std::thread([this] { context_.run(); });
}

void DnsServer::Impl::Stop() {
  if (std::exchange(stopped_, true)) return;
  context_.stop();
  if (thread_.joinable()) thread_.join();
  waiting_.clear();
  connections_.CloseAll();
  tcp_listeners_.clear();
  udp_listeners_.clear();
  listening_.clear();
  std::unique_ptr<ServiceTable> table;
  std::unique_ptr<Responder> responder;
  std::vector<Explaining> explaining;
  {
    MutexLock lock(&mu_);
    table.swap(table_);
    responder.swap(responder_);
    explaining.swap(explaining_);
  }
  for (Explaining& one : explaining) {
    std::move(one.done)(Refusal(registry::v1::ERROR_REASON_SHUTTING_DOWN, "the DNS server ends"));
  }
}

void DnsServer::Impl::ReadUdp(UdpListener* listener) {
  listener->socket.async_wait(udp::socket::wait_read, [this, listener](const error_code& error) {
    if (error) return;
    for (int batch = 0; batch < kBatchesAtATime; ++batch) {
      // Until none is left: more come while these are answered, and to sleep costs more than to look.
      const size_t received = listener->packets.Receive();
      if (received == 0) break;
      for (size_t i = 0; i < received; ++i) {
        const UdpPeer& peer = listener->packets.peer(i);
        const std::string_view packet = listener->packets.packet(i);
        const std::string_view client = AddressOf(peer.address);
        const Responder::Answered answered =
            responder_->Answer(packet, client, /*tcp=*/false, MayWait(client, IsLoopback(client)),
                               /*again=*/false, listener->packets.answer(i));
        listener->packets.SetAnswerSize(i, answered.size);
        if (answered.outcome == Responder::Outcome::kWait) {
          Wait({std::string(packet), 0, listener, peer, {}, std::string(NetworkOf(client))});
        }
      }
      listener->packets.Send();
    }
    ReadUdp(listener);
  });
}

void DnsServer::Impl::Accept(TcpListener* listener) {
  listener->acceptor.async_accept([this, listener](const error_code& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      connections_.Add(std::move(socket), NowNanos());
      return Accept(listener);
    }
    // Without descriptors, for example: at once it would fail again.
    Log(LogLevel::kWarning, "dns accept failed", {{"error", error.message()}});
    listener->pause.expires_after(kAcceptPause);
    listener->pause.async_wait([this, listener](const error_code& ended) {
      if (!ended) Accept(listener);
    });
  });
}

bool DnsServer::Impl::TakeQuery(TcpConnection* connection, std::string_view query) {
  connection->active_nanos = NowNanos();
  const std::string& client = connection->client();
  const Responder::Answered answered =
      responder_->Answer(query, client, /*tcp=*/true, MayWait(client, /*proven=*/true),
                         /*again=*/false, buffer_.data());
  if (answered.outcome == Responder::Outcome::kSend) {
    connection->Send({buffer_.data(), answered.size});
  }
  if (answered.outcome != Responder::Outcome::kWait) return false;
  Wait({std::string(query),
        0,
        nullptr,
        {},
        connection->weak_from_this(),
        std::string(NetworkOf(client))});
  return true;
}

bool DnsServer::Impl::MayWait(std::string_view client, bool proven) const {
  if (waiting_.empty()) return true;
  if (waiting_.size() >= (proven ? options_.max_waiting : options_.max_waiting / 2)) return false;
  const auto it = waiting_of_.find(std::string(NetworkOf(client)));
  return it == waiting_of_.end() || it->second < options_.max_waiting_of_network;
}

void DnsServer::Impl::Wait(Waiting waiting) {
  waiting.until_nanos = NowNanos() + absl::ToInt64Nanoseconds(options_.table.first_wait);
  ++waiting_of_[waiting.network];
  waiting_.push_back(std::move(waiting));
  waiting_count_ = static_cast<int64_t>(waiting_.size());
  // One that is near enough stays: put off by each query, it would not come.
  if (tick_.expiry() > std::chrono::steady_clock::now() + kWaitingTick) Tick();
}

void DnsServer::Impl::Wake() {
  wake_posted_ = false;
  AnswerWaiting(/*only_late=*/false);
  ExplainWaiting();
}

void DnsServer::Impl::AnswerWaiting(bool only_late) {
  const int64_t now = NowNanos();
  std::deque<Waiting> waiting;
  waiting.swap(waiting_);
  waiting_of_.clear();
  const auto keep = [this](Waiting& query) {
    ++waiting_of_[query.network];
    waiting_.push_back(std::move(query));
  };
  for (Waiting& query : waiting) {
    const bool late = query.until_nanos <= now;
    const std::shared_ptr<TcpConnection> connection = query.connection.lock();
    if (query.listener == nullptr && connection == nullptr) continue;
    if (only_late && !late) {
      keep(query);
      continue;
    }
    const bool tcp = connection != nullptr;
    const Responder::Answered answered = responder_->Answer(
        query.query, tcp ? std::string_view(connection->client()) : AddressOf(query.peer.address),
        tcp, /*may_wait=*/!late, /*again=*/true, buffer_.data());
    if (answered.outcome == Responder::Outcome::kWait) {
      keep(query);
      continue;
    }
    const std::string_view answer(buffer_.data(), answered.size);
    if (!tcp) {
      query.listener->packets.SendTo(query.peer, answer);
    } else {
      connection->Send(answer);
      connection->Waited();
    }
  }
  waiting_count_ = static_cast<int64_t>(waiting_.size());
}

void DnsServer::Impl::Explain(std::string name, Callback<Explanation> done) {
  if (name.empty() || name.size() > kMaxExplainedName) {
    return std::move(done)(InvalidField(
        "name", absl::StrCat("has ", name.size(), " bytes; allowed are 1 to ", kMaxExplainedName)));
  }
  absl::Status refused;
  {
    MutexLock lock(&mu_);
    if (responder_ == nullptr) {
      refused = Refusal(registry::v1::ERROR_REASON_SHUTTING_DOWN, "the DNS server does not run");
    } else if (explaining_.size() >= kMaxExplaining) {
      refused = Refusal(registry::v1::ERROR_REASON_OVERLOADED,
                        absl::StrCat(kMaxExplaining, " names are being explained; try again"));
    } else {
      explaining_.push_back({std::move(name),
                             NowNanos() + absl::ToInt64Nanoseconds(options_.table.first_wait),
                             std::move(done)});
      return asio::post(context_, [weak = weak_from_this()] {
        if (const std::shared_ptr<Impl> impl = weak.lock()) impl->ExplainWaiting();
      });
    }
  }
  std::move(done)(refused);
}

void DnsServer::Impl::ExplainWaiting() {
  std::vector<Explaining> explaining;
  {
    MutexLock lock(&mu_);
    explaining.swap(explaining_);
  }
  std::vector<Explaining> waiting;
  for (Explaining& one : explaining) {
    const Meaning meaning = MeaningOfText(zone_.domain, one.name);
    ServiceTable::Found found;
    if (!meaning.service.empty()) {
      found = table_->Look(meaning.name_space, meaning.service, {});
    }
    if (found.wait && NowNanos() < one.until_nanos) {
      waiting.push_back(std::move(one));
      continue;
    }
    std::vector<NotRegistered> not_registered;
    if (!meaning.service.empty() && options_.not_registered != nullptr) {
      not_registered = options_.not_registered(meaning.name_space, meaning.service);
    }
    std::move(one.done)(
        dns::Explain(zone_, options_.table.records, one.name, meaning, found, not_registered));
  }
  explanation_waits_ = !waiting.empty();
  if (!explanation_waits_) return;
  {
    MutexLock lock(&mu_);
    std::move(waiting.begin(), waiting.end(), std::back_inserter(explaining_));
  }
  if (tick_.expiry() > std::chrono::steady_clock::now() + kWaitingTick) Tick();
}

void DnsServer::Impl::Tick() {
  if (waiting_.empty() && !explanation_waits_) {
    tick_.expires_after(kIdleTick);
  } else {
    tick_.expires_after(kWaitingTick);
  }
  tick_.async_wait([this](const error_code& error) {
    if (error) return;  // another is on its way
    AnswerWaiting(/*only_late=*/true);
    if (explanation_waits_) ExplainWaiting();
    table_->Sweep();
    connections_.CloseIdle(NowNanos() - absl::ToInt64Nanoseconds(options_.idle_timeout));
    Tick();
  });
}

DnsServer::Statistics DnsServer::Impl::Stats() const {
  Statistics statistics;
  MutexLock lock(&mu_);
  if (responder_ == nullptr) return statistics;
  const Counters& counters = responder_->counters();
  statistics.udp_queries = counters.udp_queries;
  statistics.tcp_queries = counters.tcp_queries;
  statistics.no_error = counters.no_error;
  statistics.no_data = counters.no_data;
  statistics.nx_domain = counters.nx_domain;
  statistics.serv_fail = counters.serv_fail;
  statistics.refused = counters.refused;
  statistics.other = counters.other;
  statistics.truncated = counters.truncated;
  statistics.limited = counters.limited;
  statistics.ignored = counters.ignored;
  statistics.waiting = waiting_count_;
  statistics.connections = connections_.size();
  statistics.closed_connections = connections_.closed();
  statistics.table = table_->Stats();
  return statistics;
}

absl::StatusOr<std::unique_ptr<DnsServer>> DnsServer::Bind(const Options& options) {
  auto impl = std::make_shared<Impl>(options);
  if (absl::Status status = impl->Bind(); !status.ok()) return status;
  return std::unique_ptr<DnsServer>(new DnsServer(std::move(impl)));
}

DnsServer::DnsServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

DnsServer::~DnsServer() { impl_->Stop(); }

void DnsServer::Start(Registry* registry) { impl_->Start(registry); }

void DnsServer::Stop() { impl_->Stop(); }

const std::vector<std::string>& DnsServer::addresses() const { return impl_->addresses(); }

std::string DnsServer::domain() const { return impl_->domain(); }

const std::string& DnsServer::zone() const { return impl_->zone(); }

void DnsServer::Explain(std::string name, Callback<Explanation> done) {
  impl_->Explain(std::move(name), std::move(done));
}

DnsServer::Statistics DnsServer::Stats() const { return impl_->Stats(); }

}  // namespace failback::dns
