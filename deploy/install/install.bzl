"""Packs libraries with all that they are made of, and programs, as a tree for a PREFIX."""

def _place(header):
    """Where a header goes below include/failback, or None for one that is not ours."""
    path = header.path
    if "/bin/" in path and path.startswith("bazel-out/"):
        path = path[path.index("/bin/") + len("/bin/"):]
    if path.startswith("external/failback/"):
        path = path[len("external/failback/"):]
    if path.startswith("external/"):
        return None
    return path[len("proto/"):] if path.startswith("proto/") else path

def _install_tree_impl(ctx):
    archives = []
    flags = []
    for dep in ctx.attr.deps:
        for linked in dep[CcInfo].linking_context.linker_inputs.to_list():
            for library in linked.libraries:
                archive = library.pic_static_library or library.static_library
                if archive and archive not in archives:
                    archives.append(archive)
            for flag in linked.user_link_flags:
                if flag not in flags:
                    flags.append(flag)
    headers = depset(transitive = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps])
    programs = [program[DefaultInfo].files_to_run.executable for program in ctx.attr.programs]

    # One line for each file: what to do with it, where it is, where it goes.
    lines = ["archive %s -" % archive.path for archive in archives]
    lines += ["program %s -" % program.path for program in programs]
    for header in headers.to_list():
        place = _place(header)
        if place:
            lines.append("header %s %s" % (header.path, place))
    plan = ctx.actions.declare_file(ctx.label.name + ".plan")
    ctx.actions.write(plan, "\n".join(lines) + "\n")

    tree = ctx.actions.declare_file(ctx.label.name + ".tar")
    ctx.actions.run(
        executable = ctx.executable._pack,
        arguments = [plan.path, ctx.file.pkg_config.path, ctx.file.cmake_config.path, ctx.file.cmake_version.path, ctx.file.exported.path, tree.path, " ".join(flags)],
        inputs = depset(archives + programs + [plan, ctx.file.pkg_config, ctx.file.cmake_config, ctx.file.cmake_version, ctx.file.exported], transitive = [headers]),
        outputs = [tree],
        mnemonic = "InstallTree",
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([tree]), runfiles = ctx.runfiles([tree]))]

install_tree = rule(
    implementation = _install_tree_impl,
    attrs = {
        "cmake_config": attr.label(allow_single_file = True, mandatory = True),
        "cmake_version": attr.label(allow_single_file = True, mandatory = True),
        "deps": attr.label_list(providers = [CcInfo], mandatory = True),
        "exported": attr.label(allow_single_file = True, mandatory = True),
        "pkg_config": attr.label(allow_single_file = True, mandatory = True),
        "programs": attr.label_list(),
        "_pack": attr.label(default = ":pack", executable = True, cfg = "exec"),
    },
)
