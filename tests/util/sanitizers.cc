// What the sanitizers may not hold against us: the system's libraries, which are not instrumented.
// Linked into tests that use gRPC.

extern "C" {

// c-ares keeps what it read of /etc/hosts when the process ends during a lookup.
const char* __lsan_default_suppressions() { return "leak:libcares.so\n"; }

// libgrpc and the system's Abseil synchronize by means that TSan does not see.
const char* __tsan_default_suppressions() {
  return "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libabsl_synchronization.so\n"
         "race:libgrpc\n"
         "race:libabsl\n"
         "mutex:libgrpc\n"
         "deadlock:libgrpc\n"
         "thread:libgpr.so\n";
}

}  // extern "C"
