"""The clients' pages and types: the programs of each README run as they stand, and a checker of types takes a typed
caller and finds its mistakes."""

import os
import re
import subprocess
import sys
import unittest

import node_modules
from sidecar import PATIENCE, Sidecar


def programs(page, language):
    with open(page, encoding="utf-8") as file:
        found = re.findall(r"^```%s\n(.*?)^```$" % language, file.read(), re.S | re.M)
    assert found, page
    return found


class Readme(Sidecar):
    def run_program(self, *argv):
        return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=self.folder,
                              env=dict(os.environ, FAILBACK_TARGET=self.target))

    def check(self, done):
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"\[ ?'10\.0\.0\.7:8080' ?\] [Ff]alse\n$")
        self.until(lambda: self.listed("orders"), {})

    def test_programs_of_the_python_page(self):
        for program in programs("clients/python/README.md", "python"):
            self.check(self.run_program(sys.executable, "-X", "dev", "-c", program))

    def test_program_of_the_node_page(self):
        node_modules.lay(self.folder)
        for number, program in enumerate(programs("clients/node/README.md", "js")):
            path = "%s/program%d.js" % (self.folder, number)
            with open(path, "w", encoding="utf-8") as file:
                file.write(program)
            self.check(self.run_program("node", "--preserve-symlinks", path))

    def test_types_for_python(self):
        path = os.path.abspath("tests/clients/typed.py")
        with open(path, encoding="utf-8") as file:
            mistakes = [number for number, line in enumerate(file, 1) if line.endswith("# mistake\n")]
        done = subprocess.run(
            ["/usr/bin/mypy", "--strict", "--follow-imports=silent", "--ignore-missing-imports", "--cache-dir",
             self.folder, path], capture_output=True, text=True, check=False,
            env=dict(os.environ, MYPYPATH=os.environ["PACKED"] + "/python"))
        found = [int(line) for line in re.findall(r"typed\.py:(\d+): error", done.stdout)]
        self.assertEqual(found, mistakes, done.stdout + done.stderr)
        # Else every import is of an unknown type, and no mistake is found.
        self.assertTrue(os.path.exists(os.environ["PACKED"] + "/python/failback/py.typed"))

    def test_types_for_node(self):
        node_modules.lay_program(self.folder, "typed.ts")
        done = self.run_program("node", "node_modules/typescript/bin/tsc", "--strict", "--noEmit", "--target", "es2022",
                                "--module", "nodenext", "--types", "node", "typed.ts")
        self.assertEqual((done.returncode, done.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
