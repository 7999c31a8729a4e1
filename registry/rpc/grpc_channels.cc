#include "registry/rpc/grpc_channels.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "registry/base/address.h"
#include "registry/base/steady_time.h"
#include "registry/model/errors.h"
#include "registry/rpc/grpc_threads.h"

namespace failback {
namespace {

using registry::v1::RegistryService;

// Sessions at another store, in a row, until it is accepted to be the registry now.
constexpr int kStoreIsAccepted = 5;

grpc::ChannelArguments Arguments(const GrpcChannelOptions& options) {
  const auto millis = [](absl::Duration d) {
    return static_cast<int>(absl::ToInt64Milliseconds(d));
  };
  grpc::ChannelArguments arguments;
  arguments.SetUserAgentPrefix(options.user_agent);
  arguments.SetMaxReceiveMessageSize(options.max_message_bytes);
  arguments.SetMaxSendMessageSize(options.max_message_bytes);
  // Nothing compressed is asked for, nor inflated: gRPC bounds a message before that, not after.
  arguments.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  arguments.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, millis(options.ping_interval));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, millis(options.ping_timeout));
  // A subscription may be silent for hours; its pings go on.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The minimum is what bounds one connection attempt.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, millis(options.connect_timeout));
  // A fresh channel must not inherit the backoff of the one that it replaces.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Retries are the business of the intent's owner.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // One channel for each attempt while the registry is unavailable: without books about them a
  // quarter of the work.
  arguments.SetInt(GRPC_ARG_ENABLE_CHANNELZ, 0);
  arguments.SetInt(GRPC_ARG_MAX_CHANNEL_TRACE_EVENT_MEMORY_PER_NODE, 0);
  // A registry is inside the site; a proxy for the web does not lead to it.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (options.security != nullptr && !options.security->server_name().empty()) {
    arguments.SetSslTargetNameOverride(options.security->server_name());
  }
  return arguments;
}

// `address` as gRPC takes it. A number is not looked up: gRPC would wake threads for each attempt.
std::string Target(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return address;
  if (const auto parsed = ParseAddress(address); parsed.ok()) {
    const HostKind kind = HostKindOf(parsed->host);
    if (kind == HostKind::kIpv4) return absl::StrCat("ipv4:", address);
    if (kind == HostKind::kIpv6) return absl::StrCat("ipv6:", address);
  }
  return absl::StrCat("dns:///", address);
}

// Each client has an order of its own: a fleet with one list spreads over all of it, and when one
// of them goes, its clients spread over the others.
std::vector<std::string> Shuffled(std::vector<std::string> addresses) {
  absl::BitGen random;
  std::shuffle(addresses.begin(), addresses.end(), random);
  return addresses;
}

}  // namespace

GrpcChannels::GrpcChannels(std::vector<std::string> addresses, GrpcChannelOptions options)
    : addresses_(Shuffled(std::move(addresses))), options_(std::move(options)) {
  KeepGrpcCallbackThreads();
  MutexLock lock(&mu_);
  credentials_ = options_.security != nullptr
                     ? options_.security->Current()
                     : ClientSecurity::Credentials{grpc::InsecureChannelCredentials(), 1};
  for (const std::string& address : addresses_) slots_.push_back(NewSlot(address));
}

GrpcChannels::Picked GrpcChannels::Pick() {
  ClientSecurity::Credentials credentials;  // version 0: nothing new
  if (options_.security != nullptr) credentials = options_.security->Current();
  std::vector<Slot> replaced;  // destroyed without the lock
  MutexLock lock(&mu_);
  if (credentials.version > credentials_.version) {
    // Calls under way keep their connections.
    credentials_ = credentials;
    replaced.swap(slots_);
    for (const std::string& address : addresses_) slots_.push_back(NewSlot(address));
  }
  for (size_t tried = 0; tried < slots_.size(); ++tried) {
    const Slot& slot = slots_[current_];
    if (slot.channel->GetState(false) != GRPC_CHANNEL_TRANSIENT_FAILURE) {
      return {slot.stub, current_, slot.channel};
    }
    current_ = (current_ + 1) % slots_.size();
  }
  // None can be reached as far as is known. The one tried longest ago is tried now.
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].created < slots_[current_].created) current_ = i;
  }
  replaced.push_back(std::exchange(slots_[current_], NewSlot(addresses_[current_])));
  return {slots_[current_].stub, current_, slots_[current_].channel};
}

absl::Status GrpcChannels::Authenticate(grpc::ClientContext* context) const {
  return options_.security == nullptr ? absl::OkStatus() : options_.security->Authenticate(context);
}

void GrpcChannels::Report(const Picked& picked, const absl::Status& status) {
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return;
  // A server that ends a stream for its age is well.
  if (ReasonOf(status) == registry::v1::ERROR_REASON_IDLE) return;
  MutexLock lock(&mu_);
  // A late report of a channel that is gone says nothing about the one that took its place.
  if (picked.index != current_ || picked.stub != slots_[current_].stub) return;
  current_ = (current_ + 1) % slots_.size();
}

absl::Status GrpcChannels::ReportStore(const Picked& picked, const std::string& store_id) {
  absl::Status refused;
  {
    MutexLock lock(&mu_);
    const bool another = !store_id_.empty() && !store_id.empty() && store_id != store_id_ &&
                         picked.index != store_address_;
    if (!another || ++refused_stores_ == kStoreIsAccepted) {
      refused_stores_ = 0;
      store_id_ = store_id;
      store_address_ = picked.index;
      return absl::OkStatus();
    }
    refused = absl::FailedPreconditionError(
        absl::StrCat(addresses_[picked.index], " leads to store ", store_id, ", and ",
                     addresses_[store_address_], " to store ", store_id_,
                     "; several addresses of one registry must lead to one store"));
  }
  Report(picked, absl::UnavailableError("another store"));
  return refused;
}

GrpcChannels::Slot GrpcChannels::NewSlot(const std::string& address) const {
  Slot slot;
  const bool is_unix = absl::StartsWith(address, "unix:");
  slot.channel = grpc::CreateCustomChannel(
      Target(address), is_unix ? grpc::InsecureChannelCredentials() : credentials_.credentials,
      Arguments(options_));
  slot.stub = RegistryService::NewStub(slot.channel);
  slot.created = SteadyNow();
  return slot;
}

}  // namespace failback
