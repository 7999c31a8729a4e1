"""C++ code from .proto files, by the system's protoc and gRPC plugin."""

def failback_cc_proto(name, src, deps = [], grpc = False):
    """Declares the libraries of one .proto file.

    Args:
      name: the stem, as `registry_v1`. Makes `<name>_proto` (the source),
        `<name>_cc_proto` (messages) and, with grpc, `<name>_cc_grpc` (service).
      src: path of the .proto file below this package, which is its import path.
      deps: stems of the files that it imports.
      grpc: whether it has a service.
    """
    stem = src[:-len(".proto")]
    proto_deps = [dep + "_proto" for dep in deps]

    native.filegroup(
        name = name + "_proto",
        srcs = [src] + proto_deps,
    )

    outs = [stem + ".pb.h", stem + ".pb.cc"]
    command = "$(location @failback_deps//:bin/protoc) -I proto --cpp_out=$(RULEDIR)"
    tools = ["@failback_deps//:bin/protoc"]
    if grpc:
        outs += [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"]
        tools.append("@failback_deps//:bin/grpc_cpp_plugin")
        command += (" --grpc_out=$(RULEDIR)" +
                    " --plugin=protoc-gen-grpc=$(location @failback_deps//:bin/grpc_cpp_plugin)")

    native.genrule(
        name = name + "_gen",
        srcs = [src] + proto_deps,
        outs = outs,
        # The sources' root is found from a source's own path, so that the rule also
        # works when this workspace is an external one.
        cmd = command.replace("-I proto", "-I $$(dirname $(location {src}) | sed 's|/*{dir}$$||')".format(
            dir = src[:src.rindex("/")],
            src = src,
        )) + " $(location {})".format(src),
        tools = tools,
    )

    native.cc_library(
        name = name + "_cc_proto",
        srcs = [stem + ".pb.cc"],
        hdrs = [stem + ".pb.h"],
        includes = ["."],
        deps = [dep + "_cc_proto" for dep in deps] + ["@failback_deps//:protobuf"],
    )

    if grpc:
        native.cc_library(
            name = name + "_cc_grpc",
            srcs = [stem + ".grpc.pb.cc"],
            hdrs = [stem + ".grpc.pb.h"],
            includes = ["."],
            deps = [":" + name + "_cc_proto", "@failback_deps//:grpc++"],
        )
