// What the sanitizers may not hold against us: the system's libraries, which are not instrumented.
// Linked into tests that use gRPC.

// NOLINTBEGIN(bugprone-reserved-identifier): the names are the sanitizers'.
extern "C" {

// c-ares keeps what it read of /etc/hosts when the process ends during a lookup.
const char* __lsan_default_suppressions() { return "leak:libcares.so\n"; }

// libgrpc and the system's Abseil hand objects from thread to thread by means that TSan does not
// see, so whatever runs below gRPC looks like a race. What is left to judge: our threads among
// themselves.
const char* __tsan_default_suppressions() {
  return "race:grpc::\n"
         "race:libgrpc.so\n"
         "race:libgrpc++.so\n"
         "race:libgpr.so\n"
         "race:libabsl\n"
         // A status is counted in the library, and freed wherever the last copy goes.
         "race:absl::debian3::Status::Unref\n"
         "race:absl::debian3::Status::~Status\n"
         "mutex:libgrpc\n"
         "deadlock:libgrpc\n"
         "thread:libgpr.so\n";
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)
