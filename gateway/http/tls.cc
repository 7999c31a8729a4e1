#include "gateway/http/tls.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "absl/strings/str_cat.h"
#include "boost/asio/buffer.hpp"
#include "registry/security/identity.h"

namespace failback::http {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

absl::Status Refused(const char* what, const error_code& error) {
  return absl::InternalError(absl::StrCat("TLS: ", what, ": ", error.message()));
}

absl::StatusOr<std::shared_ptr<ssl::context>> NewContext(const ServerTls::Shown& shown) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  // A session that is resumed would bring no certificate along.
  SSL_CTX_set_session_cache_mode(context->native_handle(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context->native_handle(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context->native_handle(), SSL_MODE_RELEASE_BUFFERS);
  error_code error;
  const TlsMaterial& material = shown.material;
  context->use_certificate_chain(boost::asio::buffer(material.cert), error);
  if (error) return Refused("certificate", error);
  context->use_private_key(boost::asio::buffer(material.key), ssl::context::pem, error);
  if (error) return Refused("key", error);
  if (shown.client_certificates == ClientCertificates::kOff) return context;
  context->add_certificate_authority(boost::asio::buffer(material.ca), error);
  if (error) return Refused("authorities", error);
  const bool required = shown.client_certificates == ClientCertificates::kRequired;
  context->set_verify_mode(
      ssl::verify_peer | (required ? ssl::verify_fail_if_no_peer_cert : ssl::verify_none), error);
  if (error) return Refused("client certificates", error);
  return context;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ssl::context>> TlsContexts::Current() {
  if (context_ != nullptr && tls_->version() == version_) return context_;
  const ServerTls::Shown shown = tls_->shown();
  absl::StatusOr<std::shared_ptr<ssl::context>> context = NewContext(shown);
  if (!context.ok()) return context.status();
  context_ = *std::move(context);
  version_ = shown.version;
  return context_;
}

Shown ShownBy(SSL* connection) {
  Shown shown;
  X509* const certificate = SSL_get_peer_certificate(connection);
  if (certificate == nullptr) return shown;
  BIO* const out = BIO_new(BIO_s_mem());
  if (PEM_write_bio_X509(out, certificate) == 1) {
    char* data = nullptr;
    const int64_t size = BIO_get_mem_data(out, &data);
    shown.certificate.assign(data, static_cast<size_t>(size));
  }
  BIO_free(out);
  X509_free(certificate);
  shown.owner = IdentityOfCertificate(shown.certificate);
  return shown;
}

}  // namespace failback::http
