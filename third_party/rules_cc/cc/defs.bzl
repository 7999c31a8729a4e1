"""The part of rules_cc that Bazel 4's own repositories load, as the native rules.

Debian's bazel-rules-cc 0.0.4 needs Bazel 5; Bazel 4 has the same rules built in.
"""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_proto_library = native.cc_proto_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
fdo_prefetch_hints = native.fdo_prefetch_hints
fdo_profile = native.fdo_profile
objc_import = native.objc_import
objc_library = native.objc_library

def _compiler_flag_impl(ctx):
    return [config_common.FeatureFlagInfo(value = "gcc")]

compiler_flag = rule(
    implementation = _compiler_flag_impl,
    attrs = {"_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain")},
)
