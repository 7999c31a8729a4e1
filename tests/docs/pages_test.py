"""Every page: links lead to a page and a heading that are there, the first paragraph says for whom it is, and the flags of
command lines are ones that the programs have."""

import glob
import os
import re
import subprocess
import unittest

PAGES = sorted(glob.glob("*.md") + glob.glob("docs/*.md") + glob.glob("clients/*/*.md"))
PROGRAMS = {
    "failback-agent": "agent/failback-agent",
    "failbackctl": "agent/failbackctl",
    "failback-registry": "registry/failback-registry",
}

# At the beginning of a line, after a prompt, or in a span of code.
COMMAND_LINE = r"(?:^|^\$ |`)((?:failbackctl|failback-registry|failback-agent) [^`\n|&;]*)"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def without_blocks(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def anchors(text):
    """Of the headings, as hosts of Markdown make them."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(text), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-") for heading in headings}


class Pages(unittest.TestCase):
    def test_links_lead_somewhere(self):
        checked = 0
        for page in PAGES:
            for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(read(page))):
                name, _, anchor = link.partition("#")
                if not re.search(r"^$|\.(md|png|svg)$", name) or re.match(r"https?:", link):
                    continue
                checked += 1
                path = os.path.normpath(os.path.join(os.path.dirname(page), name)) if name else page
                with self.subTest(page=page, link=link):
                    self.assertTrue(os.path.exists(path))
                    if anchor:
                        self.assertIn(anchor, anchors(read(path)))
        self.assertGreater(checked, 100)

    def test_the_first_paragraph_says_for_whom_the_page_is(self):
        for page in PAGES:
            if "/" in page:
                with self.subTest(page=page):
                    self.assertRegex(read(page).split("\n\n")[1], r"^For [a-z]")

    def test_flags_of_command_lines_exist(self):
        helps = {}

        def flags(*words):
            """Those of the program or command, or None if there is no such command."""
            if words not in helps:
                done = subprocess.run([PROGRAMS[words[0]], *words[1:], "--help"], capture_output=True, text=True,
                                      check=False)
                known = set(re.findall(r"(?<![\w-])--?[a-zA-Z][a-z0-9-]*", done.stdout))
                helps[words] = known if done.returncode == 0 else None
            return helps[words]

        checked = 0
        for page in PAGES:
            text = re.sub(r"\\\n\s*", "", read(page))
            for line in re.findall(COMMAND_LINE, text, re.M):
                words = line.split("#")[0].split()
                known = set(flags(words[0]))
                for word in words[1:]:
                    if re.fullmatch(r"[a-z][a-z-]*", word):
                        known |= flags(words[0], word) or set()
                for word in words[1:]:
                    flag = re.match(r"--[a-z][a-z0-9-]*", word)
                    if flag:
                        checked += 1
                        with self.subTest(page=page, line=line):
                            self.assertIn(flag.group(), known)
        self.assertGreater(checked, 60)


if __name__ == "__main__":
    unittest.main()
