"""MODULE.bazel, which no Bazel here reads, says what WORKSPACE says: the version, and the same repository of the system's
libraries. Both are Starlark, which is Python as far as these files go."""

import re
import unittest

# What Bazel 4's own repositories load; newer ones bring them along.
OF_BAZEL_4 = {"bazel_skylib", "platforms", "remote_coverage_tools", "rules_cc", "rules_java", "rules_proto"}


def run(path, **names):
    """Runs a file that knows `names` and nothing else."""
    with open(path, encoding="utf-8") as file:
        code = re.sub(r"^load\(.*\)$", "", file.read(), flags=re.M)
    names["__builtins__"] = {}
    exec(compile(code, path, "exec"), names)  # pylint: disable=exec-used
    return names


class Module(unittest.TestCase):
    def setUp(self):
        self.declared = {}
        self.imported = []
        self.module = {}

        def declare(name, build_file=None, path=None):
            self.declared[name] = (build_file, path)

        run("WORKSPACE", workspace=lambda name: self.assertEqual(name, "failback"), local_repository=declare,
            new_local_repository=declare)
        self.workspace, self.declared = self.declared, {}
        extensions = run("third_party/debian.bzl", new_local_repository=declare, Label=lambda label: label,
                         module_extension=lambda implementation: implementation)

        def use_extension(path, name):
            self.assertEqual(path, "//third_party:debian.bzl")
            extensions[name](None)
            return name

        run("MODULE.bazel", module=lambda **arguments: self.module.update(arguments), use_extension=use_extension,
            use_repo=lambda extension, *names: self.imported.extend(names))

    def test_it_has_the_version_of_the_headers(self):
        with open("registry/base/version.h", encoding="utf-8") as file:
            (version,) = re.findall(r'kVersion\[\] = "(.*)"', file.read())
        self.assertEqual((self.module["name"], self.module["version"]), ("failback", version))

    def test_it_declares_what_the_workspace_declares(self):
        wanted = {name: place for name, place in self.workspace.items() if name not in OF_BAZEL_4}
        self.assertEqual(self.declared, wanted)
        self.assertEqual(set(self.imported), set(wanted))
        self.assertLessEqual(OF_BAZEL_4, set(self.workspace))


if __name__ == "__main__":
    unittest.main()
