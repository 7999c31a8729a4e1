#include "registry/security/token_seal.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <array>
#include <cstdlib>
#include <memory>

#include "absl/strings/escaping.h"

namespace failback {
namespace {

constexpr size_t kMaxSealed = 8 << 10;
constexpr int kNonceBytes = 12;
constexpr int kTagBytes = 16;

using Key = std::array<unsigned char, 32>;

const Key& ProcessKey() {
  static const Key key = [] {
    Key made{};
    if (RAND_bytes(made.data(), static_cast<int>(made.size())) != 1) std::abort();
    return made;
  }();
  return key;
}

using Cipher = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

Cipher NewCipher() { return Cipher(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free); }

unsigned char* Bytes(std::string& text, size_t at) {
  return reinterpret_cast<unsigned char*>(text.data()) + at;
}

}  // namespace

std::string SealToken(const std::string& token) {
  if (token.empty()) return token;
  // Nonce, tag, text.
  std::string sealed(kNonceBytes + kTagBytes + token.size(), '\0');
  const Cipher cipher = NewCipher();
  int written = 0;
  const bool done =
      RAND_bytes(Bytes(sealed, 0), kNonceBytes) == 1 &&
      EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, ProcessKey().data(),
                         Bytes(sealed, 0)) == 1 &&
      EVP_EncryptUpdate(cipher.get(), Bytes(sealed, kNonceBytes + kTagBytes), &written,
                        reinterpret_cast<const unsigned char*>(token.data()),
                        static_cast<int>(token.size())) == 1 &&
      EVP_EncryptFinal_ex(cipher.get(), Bytes(sealed, kNonceBytes + kTagBytes) + written,
                          &written) == 1 &&
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes,
                          Bytes(sealed, kNonceBytes)) == 1;
  if (!done) std::abort();  // a library without its own cipher
  return absl::WebSafeBase64Escape(sealed);
}

std::optional<std::string> OpenToken(const std::string& sealed) {
  std::string bytes;
  if (sealed.size() > kMaxSealed || !absl::WebSafeBase64Unescape(sealed, &bytes) ||
      bytes.size() <= kNonceBytes + kTagBytes) {
    return std::nullopt;
  }
  std::string token(bytes.size() - kNonceBytes - kTagBytes, '\0');
  const Cipher cipher = NewCipher();
  int written = 0;
  const bool done = EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr,
                                       ProcessKey().data(), Bytes(bytes, 0)) == 1 &&
                    EVP_DecryptUpdate(cipher.get(), Bytes(token, 0), &written,
                                      Bytes(bytes, kNonceBytes + kTagBytes),
                                      static_cast<int>(token.size())) == 1 &&
                    EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes,
                                        Bytes(bytes, kNonceBytes)) == 1 &&
                    EVP_DecryptFinal_ex(cipher.get(), Bytes(token, 0) + written, &written) == 1;
  if (!done) return std::nullopt;
  return token;
}

}  // namespace failback
