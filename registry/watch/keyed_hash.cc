#include "registry/watch/keyed_hash.h"

#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/escaping.h"
#include "registry/model/ids.h"

namespace failback {
namespace {

struct Key {
  uint64_t first;
  uint64_t second;
};

uint64_t Rotate(uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }

struct Rounds {
  uint64_t v0, v1, v2, v3;

  void Round() {
    v0 += v1;
    v1 = Rotate(v1, 13) ^ v0;
    v0 = Rotate(v0, 32);
    v2 += v3;
    v3 = Rotate(v3, 16) ^ v2;
    v0 += v3;
    v3 = Rotate(v3, 21) ^ v0;
    v2 += v1;
    v1 = Rotate(v1, 17) ^ v2;
    v2 = Rotate(v2, 32);
  }
  void Take(uint64_t word) {
    v3 ^= word;
    Round();
    v0 ^= word;
  }
};

// What is left over, least significant byte first.
uint64_t Word(const char* bytes, size_t size) {
  uint64_t word = 0;
  for (size_t i = 0; i < size; ++i) {
    word |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return word;
}

}  // namespace

uint64_t SipHash13(uint64_t key0, uint64_t key1, std::string_view bytes) {
  Rounds rounds = {key0 ^ 0x736f6d6570736575u, key1 ^ 0x646f72616e646f6du,
                   key0 ^ 0x6c7967656e657261u, key1 ^ 0x7465646279746573u};
  const size_t whole = bytes.size() / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    rounds.Take(word);
  }
  rounds.Take(Word(bytes.data() + whole, bytes.size() - whole) | static_cast<uint64_t>(bytes.size())
                                                                     << 56);
  rounds.v2 ^= 0xff;
  for (int i = 0; i < 3; ++i) rounds.Round();
  return rounds.v0 ^ rounds.v1 ^ rounds.v2 ^ rounds.v3;
}

uint64_t KeyedHash(std::string_view bytes) {
  static const Key key = [] {
    const std::string random = absl::HexStringToBytes(RandomId());
    Key made;
    std::memcpy(&made, random.data(), sizeof(made));
    return made;
  }();
  return SipHash13(key.first, key.second, bytes);
}

}  // namespace failback
