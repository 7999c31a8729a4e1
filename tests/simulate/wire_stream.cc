#include "tests/simulate/wire_stream.h"

namespace failback::simulate {

void WireStream::Send(Way way, std::function<void()> arrive) {
  network_->SendOnStream(link_, way, Of(way).process, std::move(arrive),
                         [self = shared_from_this()] { self->Break(); });
}

void WireStream::Begin() {
  Send(Way::kToRegistry, [self = shared_from_this()] { self->OpenAtServer(); });
}

void WireStream::Write(Way way, std::string bytes) {
  Send(way, [self = shared_from_this(), way, bytes = std::move(bytes)] {
    if (way == Way::kToRegistry) self->OpenAtServer();
    self->Arrive(way, bytes);
  });
}

void WireStream::OpenAtServer() {
  if (std::exchange(opened_, true) || Of(Way::kToRegistry).over) return;
  open_(shared_from_this());
}

void WireStream::Arrive(Way way, const std::string& bytes) {
  Side& side = Of(way);
  if (side.over) return;
  if (kind_ == Kind::kWatch && way == Way::kToClient &&
      bytes.size() > network_->longest_message()) {
    // As gRPC does.
    EndAt(way, absl::ResourceExhaustedError("Received message larger than max"));
    return Cancel();
  }
  if (side.reading) return Deliver(way, bytes);
  side.unread = bytes;
}

void WireStream::Deliver(Way way, const std::string& bytes) {
  Of(way).reading = false;
  if (const auto end = Of(way).end.lock()) end->OnMessage(bytes);
  const auto process = Of(Back(way)).process.lock();
  if (process == nullptr) return;
  process->Run([self = shared_from_this(), way] {
    const auto writer = self->Of(Back(way)).end.lock();
    if (writer != nullptr && !self->Of(Back(way)).over) writer->OnWritten();
  });
}

void WireStream::Read(Way way) {
  Side& side = Of(way);
  side.reading = true;
  const auto process = side.process.lock();
  if (!side.unread.has_value() || process == nullptr) return;
  // Not while its end does something else.
  process->After(absl::ZeroDuration(), [self = shared_from_this(), way] {
    Side& side = self->Of(way);
    if (side.over || !side.reading || !side.unread.has_value()) return;
    const std::string bytes = *std::move(side.unread);
    side.unread.reset();
    self->Deliver(way, bytes);
  });
}

void WireStream::HalfClose() {
  Send(Way::kToRegistry, [self = shared_from_this()] {
    const auto end = self->Of(Way::kToRegistry).end.lock();
    if (end != nullptr && !self->Of(Way::kToRegistry).over) end->OnHalfClose();
  });
}

void WireStream::Finish(const absl::Status& status) {
  Of(Way::kToRegistry).over = true;
  Send(Way::kToClient,
       [self = shared_from_this(), status] { self->EndAt(Way::kToClient, status); });
}

void WireStream::Cancel() {
  Of(Way::kToClient).over = true;
  network_->SendOnStream(
      link_, Way::kToRegistry, Of(Way::kToRegistry).process,
      [self = shared_from_this()] {
        self->EndAt(Way::kToRegistry, absl::CancelledError("the client has gone"));
      },
      [] {});
}

void WireStream::EndAt(Way way, const absl::Status& status) {
  if (std::exchange(Of(way).over, true)) return;
  if (const auto end = Of(way).end.lock()) end->OnOver(status);
}

void WireStream::Break() {
  if (std::exchange(broken_, true)) return;
  network_->SendNews(link_, Way::kToClient, Of(Way::kToClient).process,
                     [self = shared_from_this()] {
                       self->EndAt(Way::kToClient, absl::UnavailableError("connection reset"));
                     });
  const auto server = Of(Way::kToRegistry).process.lock();
  if (server == nullptr) return;
  server->Run([self = shared_from_this()] {
    self->EndAt(Way::kToRegistry, absl::CancelledError("connection reset"));
  });
}

}  // namespace failback::simulate
