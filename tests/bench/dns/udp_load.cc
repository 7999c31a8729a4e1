#include "tests/bench/dns/udp_load.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/util/process.h"

namespace failback {
namespace {

constexpr absl::Duration kSilence = absl::Seconds(30);

}  // namespace

UdpLoad::UdpLoad(const std::string& address, std::string query, int window)
    : address_(address),
      query_(std::move(query)),
      window_(window),
      client_(address),
      answers_(window),
      vectors_(window),
      incoming_(window),
      outgoing_vector_{const_cast<char*>(query_.data()), query_.size()},
      outgoing_(window) {
  for (int i = 0; i < window; ++i) {
    vectors_[i] = {answers_[i].data(), answers_[i].size()};
    incoming_[i].msg_hdr.msg_iov = &vectors_[i];
    incoming_[i].msg_hdr.msg_iovlen = 1;
    outgoing_[i].msg_hdr.msg_iov = &outgoing_vector_;
    outgoing_[i].msg_hdr.msg_iovlen = 1;
  }
}

double UdpLoad::Ask(int64_t queries) {
  const absl::Time begin = absl::Now();
  int64_t sent = std::min<int64_t>(window_, queries);
  Send(static_cast<int>(sent));
  for (int64_t answered = 0; answered < queries;) {
    const int received = Receive();
    answered += received;
    const auto more = static_cast<int>(std::min<int64_t>(received, queries - sent));
    Send(more);
    sent += more;
  }
  return absl::ToDoubleSeconds(absl::Now() - begin);
}

void UdpLoad::Send(int count) {
  for (int sent = 0; sent < count;) {
    const int more = sendmmsg(client_.fd(), outgoing_.data(), count - sent, 0);
    if (more <= 0) Fatal("cannot send to " + address_);
    sent += more;
  }
}

int UdpLoad::Receive() {
  const absl::Time begin = absl::Now();
  while (true) {
    // It asks the clock only now and then.
    for (int turn = 0; turn < 10000; ++turn) {
      const int received = recvmmsg(client_.fd(), incoming_.data(), window_, MSG_DONTWAIT, nullptr);
      if (received > 0) return received;
    }
    if (absl::Now() - begin > kSilence) Fatal("no answer of " + address_);
  }
}

}  // namespace failback
