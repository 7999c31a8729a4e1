#include "registry/base/utf8.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "failback/registry/v1/registry.pb.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/stored_text.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

TEST(Utf8Test, CountsCharactersAndRefusesWhatIsNone) {
  EXPECT_EQ(Utf8Length(""), 0);
  EXPECT_EQ(Utf8Length("token"), 5);
  EXPECT_EQ(Utf8Length("é€😀"), 3);
  for (const char* bad : {"\xe9", "a\xc3", "\xe2\x82", "\xf0\x9f\x98", "\x80", "\xc0\x80",
                          "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"}) {
    EXPECT_EQ(Utf8Length(bad), -1) << bad;
    EXPECT_FALSE(IsUtf8(std::string("longer than a word ") + bad));
  }
}

TEST(Utf8Test, TheFirstAndTheLastOfEachLength) {
  for (const char* fine :
       {"\x01", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(Utf8Length(fine), 1) << absl::CHexEscape(fine);
  }
  for (const char* bad : {"\xc1\xbf", "\xe0\x9f\xbf", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf8\x88\x80\x80\x80"}) {
    EXPECT_EQ(Utf8Length(bad), -1) << absl::CHexEscape(bad);
  }
}

// ASCII is looked at by words.
TEST(Utf8Test, AByteIsSeenWhereverItIs) {
  for (size_t size = 1; size <= 33; ++size) {
    const std::string ascii(size, 'a');
    EXPECT_EQ(Utf8Length(ascii), static_cast<int>(size));
    for (size_t at = 0; at < size; ++at) {
      std::string text = ascii;
      text[at] = '\xe9';
      EXPECT_FALSE(IsUtf8(text)) << at << " of " << size;
      text.replace(at, 1, "é");
      EXPECT_EQ(Utf8Length(text), static_cast<int>(size)) << at << " of " << size;
    }
  }
}

TEST(Utf8Test, ACutIsBetweenCharacters) {
  const std::string text = "aé€😀z";  // 1, 2, 3, 4 and 1 bytes
  const size_t expected[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
  for (size_t max = 0; max <= 12; ++max) {
    std::string cut = text;
    CutUtf8(max, &cut);
    EXPECT_EQ(cut.size(), expected[max]) << max;
    EXPECT_TRUE(IsUtf8(cut)) << max;
    EXPECT_EQ(text.substr(0, cut.size()), cut);
  }
}

TEST(Utf8Test, EachByteThatIsNoCharacterIsMended) {
  EXPECT_EQ(MadeUtf8("fine é"), "fine é");
  EXPECT_EQ(MadeUtf8("token \xe9"), "token ?");
  EXPECT_EQ(MadeUtf8("cut \xe2\x82"), "cut ??");
  EXPECT_EQ(MadeUtf8("\xffé\x80"), "?é?");
}

TEST(Utf8Test, ATerminalIsGivenNoControls) {
  for (const char* control :
       {"\n", "\x1b", "\x7f", "\xc2\x80", "\xc2\x9b", "\xc2\x9f", "\xe2\x80\xa8", "\xe2\x80\xa9",
        "\xe2\x80\xaa", "\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x81\xa9"}) {
    const std::string text = absl::StrCat("é", control, "z");
    EXPECT_TRUE(HoldsControl(text)) << absl::CHexEscape(text);
    EXPECT_EQ(MadePrintable(text, '?'), "é?z") << absl::CHexEscape(text);
  }
  EXPECT_EQ(MadePrintable("cut \xe2\x82\x1b", ' '), "cut ?? ");
  EXPECT_EQ(MadePrintable("8-bit \x9b", ' '), "8-bit ?");
  for (const char* fine : {"", "a b", "é€😀", "\xc2\xa0", "\xc3\x9b", "\xe2\x80\x9b", "\xe2\x80\xa7",
                           "\xe2\x80\xaf", "\xe2\x81\xa5", "\xe2\x81\xaa"}) {
    EXPECT_FALSE(HoldsControl(fine)) << fine;
    EXPECT_EQ(MadePrintable(fine, '?'), fine);
  }
}

TEST(Utf8Test, ControlsBeyondAsciiAreEscaped) {
  EXPECT_EQ(WithControlsEscaped("é\n\xc2\x9bx\xe2\x80\xae\xe2\x80\xa8\xe2\x81\xa9€"),
            "é\n\\u009bx\\u202e\\u2028\\u2069€");
  for (const char* fine : {"", "a\nb", "é€😀", "8-bit \x9b"}) {
    EXPECT_EQ(WithControlsEscaped(fine), fine);
  }
}

TEST(Utf8Test, AMessageFromTheWireMakesNoStatusUnreadable) {
  const auto proto = StatusToProto(absl::UnavailableError("proxy says \xe9"));
  EXPECT_EQ(proto.message(), "proxy says ?");
}

registry::v1::ServiceInstance Instance(const std::string& zone, const std::string& value) {
  registry::v1::ServiceInstance instance = MakeInstance("1");
  instance.set_zone(zone);
  (*instance.mutable_metadata())["who"] = value;
  return instance;
}

TEST(StoredTextTest, AnInstanceIsReadableWhenItsTextIs) {
  EXPECT_TRUE(IsReadableInstance(CanonicalInstance(Instance("é", "€"))));
  EXPECT_FALSE(IsReadableInstance(CanonicalInstance(Instance("\xe9", "a"))));
  EXPECT_FALSE(IsReadableInstance(CanonicalInstance(Instance("a", "cut \xe2\x82"))));
  EXPECT_FALSE(IsReadableInstance("rubbish"));
  EXPECT_TRUE(HasUnreadableText(CanonicalInstance(Instance("\xe9", "a"))));
  EXPECT_FALSE(HasUnreadableText(CanonicalInstance(Instance("é", "€"))));
}

TEST(StoredTextTest, AllTextOfAnInstanceIsLookedAt) {
  using I = registry::v1::ServiceInstance;
  using Set = void (*)(I*);
  for (const Set set :
       {Set([](I* i) { i->mutable_key()->set_namespace_("\xe9"); }),
        Set([](I* i) { i->mutable_key()->set_service("\xe9"); }),
        Set([](I* i) { i->mutable_key()->set_instance_id("\xe9"); }),
        Set([](I* i) { i->set_address("\xe9"); }), Set([](I* i) { i->set_zone("\xe9"); }),
        Set([](I* i) { (*i->mutable_metadata())["\xe9"] = "a"; }),
        Set([](I* i) { (*i->mutable_metadata())["z"] = "\xe9"; })}) {
    I instance = Instance("a", "b");
    set(&instance);
    const std::string bytes = CanonicalInstance(instance);
    EXPECT_TRUE(HasUnreadableText(bytes)) << absl::CHexEscape(bytes);
    EXPECT_FALSE(IsReadableInstance(bytes)) << absl::CHexEscape(bytes);
  }
}

// From a later version: as every client, that one parses what it knows.
TEST(StoredTextTest, AnInstanceWithFieldsThatAreNotKnownIsReadableWhenItsTextIs) {
  const std::string more = "\xfa\x3f\x01x";  // field 1023, of one byte
  EXPECT_TRUE(IsReadableInstance(CanonicalInstance(Instance("é", "€")) + more));
  EXPECT_FALSE(IsReadableInstance(CanonicalInstance(Instance("\xe9", "a")) + more));
}

TEST(StoredTextTest, AMarkKeepsWhatCanBeRead) {
  registry::v1::OfflineMark mark;
  mark.set_reason("disk \xc3");
  mark.set_by("token \xe9");
  mark.mutable_time()->set_seconds(1764000000);  // its bytes are no text
  const std::string stored = mark.SerializeAsString();
  ASSERT_FALSE(registry::v1::OfflineMark().ParseFromString(stored));
  registry::v1::OfflineMark mended;
  ASSERT_TRUE(mended.ParseFromString(ReadableMark(stored)));
  EXPECT_EQ(mended.reason(), "disk ?");
  EXPECT_EQ(mended.by(), "token ?");
  EXPECT_EQ(mended.time().seconds(), 1764000000);
  mark.set_reason("disk");
  mark.set_by("é");
  EXPECT_EQ(ReadableMark(mark.SerializeAsString()), mark.SerializeAsString());
  EXPECT_EQ(ReadableMark("\xff\xff"), "") << "a mark all the same";
  // A reason that is a number, and is none for that.
  ASSERT_TRUE(mended.ParseFromString(ReadableMark("\x08\x05\x12\x01\xe9")));
  EXPECT_EQ(mended.reason(), "");
  EXPECT_EQ(mended.by(), "?");
}

}  // namespace
}  // namespace failback
