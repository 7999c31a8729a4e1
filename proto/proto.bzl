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
    tools = ["@failback_deps//:bin/protoc"]

    # The root of the import path is found from the source's own path, so that the rule also
    # works when this workspace is an external one.
    command = ("source=$(location {src}); root=$${{source%/{src}}}; " +
               "$(location @failback_deps//:bin/protoc) -I $$root --cpp_out=$(RULEDIR)").format(src = src)
    if grpc:
        outs += [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"]
        tools.append("@failback_deps//:bin/grpc_cpp_plugin")
        command += (" --grpc_out=$(RULEDIR)" +
                    " --plugin=protoc-gen-grpc=$(location @failback_deps//:bin/grpc_cpp_plugin)")

    native.genrule(
        name = name + "_gen",
        srcs = [src] + proto_deps,
        outs = outs,
        cmd = command + " $$source",
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
