"""The sources that programs and libraries are made of, as data of a test."""

_Sources = provider(
    doc = "The C++ files of a target and of all that it is made of.",
    fields = ["files"],
)

def _sources_aspect_impl(target, ctx):
    own = []
    if not target.label.workspace_name:
        for attribute in ["srcs", "hdrs"]:
            own += [file for file in getattr(ctx.rule.files, attribute, []) if file.is_source]
    return [_Sources(files = depset(
        own,
        transitive = [dep[_Sources].files for dep in getattr(ctx.rule.attr, "deps", []) if _Sources in dep],
    ))]

_sources_aspect = aspect(
    implementation = _sources_aspect_impl,
    attr_aspects = ["deps"],
)

def _product_sources_impl(ctx):
    files = depset(transitive = [target[_Sources].files for target in ctx.attr.targets])
    return [DefaultInfo(files = files, runfiles = ctx.runfiles(transitive_files = files))]

product_sources = rule(
    implementation = _product_sources_impl,
    attrs = {
        "targets": attr.label_list(
            aspects = [_sources_aspect],
            mandatory = True,
        ),
    },
)
