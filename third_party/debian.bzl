"""The system's libraries for MODULE.bazel, as WORKSPACE declares them. Untried, as that is."""

load("@bazel_tools//tools/build_defs/repo:local.bzl", "new_local_repository")

def _debian_impl(_ctx):
    new_local_repository(
        name = "failback_deps",
        build_file = Label("//third_party:failback_deps.BUILD"),
        path = "/usr",
    )

debian = module_extension(implementation = _debian_impl)
