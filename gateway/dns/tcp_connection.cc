#include "gateway/dns/tcp_connection.h"

#include <cstring>
#include <utility>

#include "boost/asio/buffer.hpp"
#include "boost/asio/error.hpp"
#include "boost/asio/write.hpp"

namespace failback::dns {
namespace {

constexpr size_t kLengthBytes = 2;

}  // namespace

void TcpConnection::Close() {
  boost::system::error_code ignored;
  socket_.close(ignored);
  if (ended_ != nullptr) std::exchange(ended_, nullptr)(this);
}

void TcpConnection::Read() {
  if (reading_ || read_all_ || !MayRead() || !socket_.is_open()) return;
  reading_ = true;
  socket_.async_read_some(
      boost::asio::buffer(in_.data() + read_, in_.size() - read_),
      [self = shared_from_this()](const boost::system::error_code& error, size_t size) {
        self->reading_ = false;
        if (error == boost::asio::error::eof) {
          self->read_all_ = true;
          return self->CloseIfDone();
        }
        if (error) return self->Close();
        self->read_ += size;
        if (self->TakeQueries()) self->Read();
      });
}

bool TcpConnection::TakeQueries() {
  size_t at = 0;
  while (read_ - at >= kLengthBytes && MayRead()) {
    const size_t length =
        static_cast<size_t>(static_cast<uint8_t>(in_[at])) << 8 | static_cast<uint8_t>(in_[at + 1]);
    // No query: where the next one begins is not known either.
    if (length < kHeaderBytes || length > kMaxQueryBytes) {
      Close();
      return false;
    }
    if (read_ - at < kLengthBytes + length) break;
    if (take_(this, {in_.data() + at + kLengthBytes, length})) ++waiting_;
    if (!socket_.is_open()) return false;
    at += kLengthBytes + length;
  }
  std::memmove(in_.data(), in_.data() + at, read_ - at);
  read_ -= at;
  return true;
}

void TcpConnection::Send(std::string_view answer) {
  if (!socket_.is_open()) return;
  unsent_ += static_cast<char>(answer.size() >> 8);
  unsent_ += static_cast<char>(answer.size());
  unsent_.append(answer);
  Write();
}

void TcpConnection::Waited() {
  --waiting_;
  if (!socket_.is_open()) return;
  if (!reading_ && TakeQueries()) Read();
  CloseIfDone();
}

void TcpConnection::CloseIfDone() {
  // It was read to its end only when all whole queries were taken.
  if (read_all_ && waiting_ == 0 && unsent_.empty() && writing_.empty()) Close();
}

void TcpConnection::Write() {
  if (!writing_.empty() || unsent_.empty()) return;
  writing_.swap(unsent_);
  boost::asio::async_write(
      socket_, boost::asio::buffer(writing_),
      [self = shared_from_this()](const boost::system::error_code& error, size_t) {
        self->writing_.clear();
        if (error) return self->Close();
        self->Write();
        // What was read before may go on now.
        if (!self->reading_ && self->TakeQueries()) self->Read();
        self->CloseIfDone();
      });
}

}  // namespace failback::dns
