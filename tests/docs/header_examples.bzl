"""The examples in the comments of public headers, as a source that a test compiles."""

_DirectHeaders = provider(
    doc = "The headers of the libraries that a library is made of.",
    fields = ["headers"],
)

def _direct_headers_impl(_target, ctx):
    return [_DirectHeaders(headers = depset([
        header
        for dep in ctx.rule.attr.deps
        for header in dep[CcInfo].compilation_context.direct_public_headers
    ]))]

_direct_headers = aspect(implementation = _direct_headers_impl)

def _header_examples_impl(ctx):
    headers = depset(transitive = [library[_DirectHeaders].headers for library in ctx.attr.libraries]).to_list()
    source = ctx.actions.declare_file(ctx.label.name + ".cc")
    ctx.actions.run(
        executable = "/usr/bin/python3",
        arguments = [ctx.file.extract.path, source.path] + [header.path for header in headers],
        inputs = headers + [ctx.file.extract],
        outputs = [source],
        mnemonic = "HeaderExamples",
    )
    return [DefaultInfo(files = depset([source]))]

# NAME.cc, with the examples of the headers of what each of `libraries` is made of.
header_examples = rule(
    implementation = _header_examples_impl,
    attrs = {
        "extract": attr.label(allow_single_file = True, mandatory = True),
        "libraries": attr.label_list(aspects = [_direct_headers], mandatory = True),
    },
)
