// What a registry can do beside Registry when it needs no messages: take a Register as it came.
//
// Choose it for a registry that keeps instances as bytes, or sends them on. RegistryServer offers
// it what it receives and takes bytes for the answer, FailbackRegistry what it sends; what is not
// in the canonical encoding, or is to be refused, comes parsed, through Registry::Register. So
// there is one place where errors are made.
//
// Thread safety: as Registry.

#ifndef FAILBACK_REGISTRY_ENCODED_REGISTRAR_H_
#define FAILBACK_REGISTRY_ENCODED_REGISTRAR_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "registry/registry.h"

namespace failback {

class EncodedRegistrar {
 public:
  virtual ~EncodedRegistrar() = default;

  enum class Results {
    kAll,
    // They may be left out when each registration is ACKNOWLEDGED under the generation that it came
    // with.
    kUnlessAsAsked,
  };

  // Carries out `request`, an encoded RegisterRequest, as Registry::Register would. False: it is
  // not taken, nothing has happened and `done` is as it was: parse it, and call Register. `request`
  // need not live on after the return.
  virtual bool RegisterEncoded(std::string_view request, Results results,
                               Callback<RegisterResponse>* done) = 0;

  // As RegisterEncoded; the answer is an encoded RegisterResponse. Override it where that spares
  // the message.
  virtual bool RegisterToBytes(std::string_view request, Results results,
                               Callback<std::string>* done) {
    const auto kept = std::make_shared<Callback<std::string>>(std::move(*done));
    Callback<RegisterResponse> parsed = [kept](absl::StatusOr<RegisterResponse> response) {
      if (!response.ok()) return std::move(*kept)(response.status());
      std::move (*kept)(response->SerializeAsString());
    };
    if (RegisterEncoded(request, results, &parsed)) return true;
    *done = std::move(*kept);
    return false;
  }
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_ENCODED_REGISTRAR_H_
