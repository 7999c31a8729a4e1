"""A source for each header of a library that has to be compiled by itself: `#include` of it, and nothing else."""

_Headers = provider(
    doc = "The headers of a library that no source of its own includes first.",
    fields = ["files"],
)

def _headers_aspect_impl(target, ctx):
    own = []
    if not target.label.workspace_name and hasattr(ctx.rule.files, "srcs"):
        sources = [file.short_path for file in ctx.rule.files.srcs]
        headers = [file for file in ctx.rule.files.srcs + ctx.rule.files.hdrs if file.extension == "h"]
        own = [header for header in headers if header.is_source and header.short_path[:-1] + "cc" not in sources]
    return [_Headers(files = depset(
        own,
        transitive = [dep[_Headers].files for dep in getattr(ctx.rule.attr, "deps", []) if _Headers in dep],
    ))]

_headers_aspect = aspect(
    implementation = _headers_aspect_impl,
    attr_aspects = ["deps"],
)

def _self_contained_sources_impl(ctx):
    headers = depset(transitive = [library[_Headers].files for library in ctx.attr.libraries]).to_list()
    sources = []
    for header in headers:
        source = ctx.actions.declare_file("%s/%s.cc" % (ctx.label.name, header.short_path))
        ctx.actions.write(source, '#include "%s"\n' % header.short_path)
        sources.append(source)
    return [DefaultInfo(files = depset(sources))]

# For each header of `libraries`, and of all that they are made of, which has no source beside it; the sources of
# the others include them first (first_include_test).
self_contained_sources = rule(
    implementation = _self_contained_sources_impl,
    attrs = {
        "libraries": attr.label_list(
            aspects = [_headers_aspect],
            mandatory = True,
        ),
    },
)
