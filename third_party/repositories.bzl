"""The repositories that `@failback//:agent` needs, for the WORKSPACE of another project on Debian 12.

    local_repository(name = "failback", path = "../failback")
    load("@failback//third_party:repositories.bzl", "failback_repositories")
    failback_repositories("../failback")

A repository that the project has already declared under one of these names is left as it is: one that
builds gRPC, Protobuf and Abseil itself declares its own `failback_deps`, with the target names of
third_party/failback_deps.BUILD.
"""

def failback_repositories(path):
    """Declares those that are not there yet.

    Args:
      path: of the folder of this repository, as in its local_repository.
    """
    declared = native.existing_rules()
    if "failback_deps" not in declared:
        native.new_local_repository(
            name = "failback_deps",
            build_file = "@failback//third_party:failback_deps.BUILD",
            path = "/usr",
        )
    for name, place in {
        "bazel_skylib": "/usr/share/bazel/tools/skylib",
        "platforms": "/usr/share/bazel/platforms",
        "remote_coverage_tools": path + "/third_party/remote_coverage_tools",
        "rules_cc": path + "/third_party/rules_cc",
        "rules_java": "/usr/share/bazel/rules/java",
        "rules_proto": "/usr/share/bazel/rules/proto",
    }.items():
        if name not in declared:
            native.local_repository(name = name, path = place)
