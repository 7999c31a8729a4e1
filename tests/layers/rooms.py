"""The rooms and the arrows between them: the table of arrows.bzl, the BUILD files, the drawing in docs/design.md.

rooms.py, in the root of the workspace, sets each room's visibility by the table and draws the rooms: `./dev rooms`.
rooms_test.py holds the table against the edges that Bazel knows.
"""

import ast
import re
import textwrap

BEGIN, END = "<!-- rooms: by `./dev rooms` -->\n```\n", "```\n<!-- end of rooms -->\n"
PAGE = "docs/design.md"
WIDTH = 118


class Table:
    """arrows.bzl, which is Starlark and Python."""

    def __init__(self, text):
        scope = {}
        exec(text, scope)
        self.arrows, self.parts, self.public = scope["ARROWS"], scope["PARTS"], scope["PUBLIC"]
        self.part_of = {target: part for part, what in self.parts.items() for target in what["targets"]}

    def room_of(self, label):
        return self.part_of.get(label, package_of(label))

    def package(self, room):
        return package_of(self.parts[room]["targets"][0]) if room in self.parts else room

    def packages(self):
        return [room for room in self.arrows if room not in self.parts]

    def visibility(self, package):
        """The default_visibility of a package: for those that may know a room of it, and for tests."""
        if package in self.public:
            return ["//visibility:public"]
        users = {self.package(user) for user, known in self.arrows.items()
                 for room in known if self.package(room) == package}
        return ["//%s:__pkg__" % user for user in sorted(users - {package})] + ["//tests:__subpackages__"]

    def levels(self):
        """How far above the ground each room is; each arrow leads down. Raises ValueError for a circle."""
        levels = {}

        def level(room, above):
            if room in above:
                raise ValueError("a circle: " + " -> ".join(above[above.index(room):] + [room]))
            if room not in levels:
                levels[room] = 1 + max([level(known, above + [room]) for known in self.arrows.get(room, [])], default=-1)
            return levels[room]

        for room in self.arrows:
            level(room, [])
        return levels


def package_of(label):
    return label[len("//"):].split(":")[0]


def build_file(package):
    return package + "/BUILD.bazel" if package else "BUILD.bazel"


def sentence(build):
    """The first sentence of the comment that a BUILD file opens with, or ""."""
    comment = re.match(r"(?:#.*\n)*", build).group()
    return re.split(r"(?<=\.)\s", re.sub(r"\n?# ?", " ", comment).strip())[0]


def package_call(build):
    """The call of package(), or None."""
    for statement in ast.parse(build).body:
        call = getattr(statement, "value", None)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "package":
            return call
    return None


def with_visibility(build, labels):
    """The text of a BUILD file with that default_visibility."""
    call = package_call(build)
    for keyword in call.keywords if call else []:
        if keyword.arg == "default_visibility":
            lines = build.splitlines(keepends=True)
            value = keyword.value
            before = "".join(lines[:value.lineno - 1]) + lines[value.lineno - 1][:value.col_offset]
            after = lines[value.end_lineno - 1][value.end_col_offset:] + "".join(lines[value.end_lineno:])
            indent = " " * (keyword.col_offset if len(call.keywords) > 1 else 0)
            if len(labels) == 1:
                return before + '["%s"]' % labels[0] + after
            return before + "[\n" + "".join(indent + '    "%s",\n' % label for label in labels) + indent + "]" + after
    raise ValueError("no default_visibility")


def drawing(table, builds):
    """Rooms from the top down, each above all that it knows."""
    levels = table.levels()
    names = {room: room or "//" for room in table.arrows}
    column = max(map(len, names.values())) + 7
    lines = []
    for room in sorted(table.arrows, key=lambda room: (-levels[room], room)):
        says = table.parts[room]["says"] if room in table.parts else sentence(builds[room])
        known = sorted(table.arrows[room], key=lambda known: (-levels[known], known))
        head = "%3d  %s" % (levels[room], names[room])
        lines += textwrap.wrap(says, WIDTH, initial_indent=head.ljust(column), subsequent_indent=" " * column)
        lines += textwrap.wrap("→ " + ", ".join(known), WIDTH, initial_indent=" " * column,
                               subsequent_indent=" " * (column + 2), break_on_hyphens=False) if known else []
    return "".join(line + "\n" for line in lines)


def with_drawing(page, text):
    before, rest = page.split(BEGIN)
    return before + BEGIN + text + END + rest.split(END)[1]


def edges(graph):
    """Pairs of labels, from the output of `bazel query --output=graph --nograph:factored`."""
    return re.findall(r'^  "([^"]+)" -> "([^"]+)"$', graph, re.M)


def unlike_edges(table, pairs):
    """Where the table is not what Bazel knows."""
    faults, used = [], set()
    for user, known in pairs:
        if known.startswith("@") or known == "//:fastbuild":  # the latter is no library, but a question of copts.bzl
            continue
        arrow = table.room_of(user), table.room_of(known)
        for label, room in zip((user, known), arrow):
            if room not in table.arrows:
                faults.append("%s: no such room: %s" % (label, room))
        if arrow[0] != arrow[1] and arrow[1] not in table.arrows.get(arrow[0], []):
            faults.append("%s may not know %s: %s -> %s" % (*arrow, user, known))
        used.add(arrow)
    for room, known_rooms in table.arrows.items():
        faults += ["nothing uses the arrow %s -> %s" % (room, known) for known in known_rooms if (room, known) not in used]
    return sorted(set(faults))


def unlike_table(table, builds):
    """Where the BUILD files are not what the table says."""
    faults = []
    for package in table.packages():
        name, build = build_file(package), builds[package]
        if not sentence(build).endswith("."):
            faults.append("%s does not open with the room's sentence" % name)
        call = package_call(build)
        default = [ast.literal_eval(keyword.value) for keyword in call.keywords
                   if keyword.arg == "default_visibility"] if call else []
        if default != [table.visibility(package)]:
            faults.append("%s: its default_visibility is not the table's; `./dev rooms` writes it" % name)
        # A target's own may be narrower; a program is for all.
        for node in ast.walk(ast.parse(build)):
            for keyword in node.keywords if isinstance(node, ast.Call) else []:
                if keyword.arg == "visibility" and node.func.id != "cc_binary":
                    faults += ["%s: %s is wider than the table" % (name, label) for label in ast.literal_eval(keyword.value)
                               if not label.startswith("//tests")]
    return faults


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    if text != read(path):
        print("rooms: " + path)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def main():
    table = Table(read("tests/layers/arrows.bzl"))
    builds = {package: read(build_file(package)) for package in table.packages()}
    for package, build in builds.items():
        write(build_file(package), with_visibility(build, table.visibility(package)))
    write(PAGE, with_drawing(read(PAGE), drawing(table, builds)))


if __name__ == "__main__":
    main()
