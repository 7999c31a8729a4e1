"""A fuzz target: tests/fuzz/NAME/NAME_fuzz.cc, for `./dev fuzz NAME` and a smoke test."""

def fuzz_target(name, deps):
    """Declares the target's library and its smoke test.

    Args:
      name: of the folder and of the target.
      deps: what the target fuzzes.
    """
    native.cc_library(
        name = name + "_fuzz",
        testonly = True,
        srcs = [name + "/" + name + "_fuzz.cc"],
        deps = deps + [":fuzz_input"],
        alwayslink = True,
    )
    native.cc_test(
        name = name + "_fuzz_smoke_test",
        size = "small",
        deps = [
            ":" + name + "_fuzz",
            ":smoke_test_main",
        ],
    )
