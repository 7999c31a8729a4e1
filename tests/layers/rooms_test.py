"""The arrows of arrows.bzl are those that Bazel knows, no more and no less; visibility and drawing are the table's."""

import unittest

import rooms

TABLE = """
PARTS = {"the top": {"says": "The top.", "targets": ["//a:top"]}}
PUBLIC = ["d"]
ARROWS = {"the top": ["b"], "a": [], "b": ["a", "c"], "c": ["d"], "d": []}
"""
EDGES = [("//a:top", "//b:b"), ("//b:b", "//a:a"), ("//b:b", "//c:c"), ("//c:c", "//c:e"), ("//c:c", "//d:d"),
         ("//d:d", "@failback_deps//:abseil")]
BUILD = """# The room c. It has more to say.
package(default_visibility = [
    "//b:__pkg__",
    "//tests:__subpackages__",
])
"""


class Rules(unittest.TestCase):
    """What is found, on a small house."""

    def setUp(self):
        self.table = rooms.Table(TABLE)

    def test_the_edges_of_the_table_and_no_others(self):
        self.assertEqual(rooms.unlike_edges(self.table, EDGES), [])
        self.assertEqual(rooms.unlike_edges(self.table, EDGES + [("//c:c", "//a:a")]),
                         ["c may not know a: //c:c -> //a:a"])

    def test_an_arrow_that_nothing_uses(self):
        self.assertEqual(rooms.unlike_edges(self.table, EDGES[1:]), ["nothing uses the arrow the top -> b"])

    def test_an_unknown_room(self):
        self.assertIn("//e:e: no such room: e", rooms.unlike_edges(self.table, EDGES + [("//e:e", "//d:d")]))
        self.assertIn("//e:e: no such room: e", rooms.unlike_edges(self.table, EDGES + [("//a:a", "//e:e")]))

    def test_a_part_is_not_the_rest_of_its_package(self):
        self.assertIn("a may not know b: //a:a -> //b:b", rooms.unlike_edges(self.table, EDGES + [("//a:a", "//b:b")]))

    def test_a_circle(self):
        with self.assertRaisesRegex(ValueError, "a circle: b -> a -> b"):
            rooms.Table(TABLE.replace('"a": []', '"a": ["b"]')).levels()

    def test_a_package_is_visible_to_those_that_may_know_it(self):
        self.assertEqual(self.table.visibility("b"), ["//a:__pkg__", "//tests:__subpackages__"])
        self.assertEqual(self.table.visibility("d"), ["//visibility:public"])

    def faults(self, build):
        table = rooms.Table("PARTS = {}\nPUBLIC = []\nARROWS = {'b': ['c'], 'c': []}")
        builds = {"b": BUILD.replace('"//b:__pkg__"', '"//b:__pkg__"'), "c": build}
        return [fault for fault in rooms.unlike_table(table, builds) if fault.startswith("c/")]

    def test_visibility_is_the_tables(self):
        self.assertEqual(self.faults(BUILD), [])
        wrong = BUILD.replace("//b:", "//a:")
        self.assertEqual(self.faults(wrong), ["c/BUILD.bazel: its default_visibility is not the table's; `./dev rooms` writes it"])
        self.assertEqual(rooms.with_visibility(wrong, ["//b:__pkg__", "//tests:__subpackages__"]), BUILD)

    def test_a_target_may_be_narrower_and_not_wider(self):
        target = 'cc_library(name = "c", visibility = ["//%s:__pkg__"])\n'
        self.assertEqual(self.faults(BUILD + target % "tests/c"), [])
        self.assertEqual(self.faults(BUILD + target % "a"), ["c/BUILD.bazel: //a:__pkg__ is wider than the table"])
        self.assertEqual(self.faults(BUILD + 'cc_binary(name = "p", visibility = ["//visibility:public"])\n'), [])

    def test_a_room_says_what_it_is(self):
        self.assertEqual(rooms.sentence(BUILD), "The room c.")
        self.assertEqual(self.faults(BUILD.split("\n", 1)[1]), ["c/BUILD.bazel does not open with the room's sentence"])

    def test_the_drawing_leads_down(self):
        builds = {room: "# Room %s.\n" % room for room in "abcd"}
        self.assertEqual(rooms.drawing(self.table, builds).split("\n"), [
            "  3  the top  The top.",
            "              → b",
            "  2  b        Room b.",
            "              → c, a",
            "  1  c        Room c.",
            "              → d",
            "  0  a        Room a.",
            "  0  d        Room d.",
            "",
        ])


class Tree(unittest.TestCase):
    """The project's own rooms."""

    def setUp(self):
        self.table = rooms.Table(rooms.read("tests/layers/arrows.bzl"))
        self.builds = {package: rooms.read(rooms.build_file(package)) for package in self.table.packages()}

    def test_arrows(self):
        pairs = rooms.edges(rooms.read("tests/layers/edges"))
        self.assertGreater(len(pairs), 500)
        self.assertEqual(rooms.unlike_edges(self.table, pairs), [])

    def test_each_arrow_leads_down(self):
        levels = self.table.levels()
        self.assertGreater(levels["registry"], levels["registry.h"])

    def test_build_files(self):
        self.assertEqual(rooms.unlike_table(self.table, self.builds), [])

    def test_drawing(self):
        page = rooms.read(rooms.PAGE)
        self.assertEqual(page, rooms.with_drawing(page, rooms.drawing(self.table, self.builds)),
                         "the drawing is not current: `./dev rooms`")


if __name__ == "__main__":
    unittest.main()
