"""manpage.py PROGRAM SECTION DATE: a manual page for PROGRAM, made of its own --help and those of its commands.

What a person reads there is so what the program does: nothing is written twice."""

import os
import re
import subprocess
import sys

FILES = {
    "failback-registry": [
        ("/etc/failback/registry.yaml", "the configuration that the service reads"),
        ("/var/lib/failback/registry.db", "the store, with files of its name beside it"),
    ],
    "failback-agent": [
        ("/etc/failback/agent.yaml", "the configuration that the service reads"),
        ("/run/failback/agent.sock", "where local programs connect: the group failback-agent"),
        ("/var/lib/failback-agent", "intents that survive the agent"),
    ],
    "failbackctl": [("/run/failback/agent.sock", "the target when none is named, if it is there")],
}
PAGES = [("failback-agent", 8), ("failback-registry", 8), ("failbackctl", 1)]


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def help_of(command):
    done = subprocess.run(command + ["--help"], capture_output=True, text=True, check=True,
                          env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"})
    return done.stdout


class Help:
    """The parts of one --help."""

    def __init__(self, text):
        lines = text.rstrip("\n").split("\n")
        self.summary = lines[0].rstrip(".")
        self.usage = next(line for line in lines if line.startswith("Usage: "))[len("Usage: "):]
        self.tables, self.rest = {}, []
        table = None
        for line in lines[lines.index("Usage: " + self.usage) + 1:]:
            heading = re.fullmatch(r"(Options|Subcommands|Positionals):", line)
            if heading:
                table = self.tables.setdefault(heading.group(1), [])
            elif table is not None and line.startswith("  "):
                self._row(table, line)
            elif line or self.rest:
                table = None
                self.rest.append(line)

    @staticmethod
    def _row(table, line):
        name, _, says = line.strip().partition("  ")
        first, _, kind = name.partition(" ")
        if first == kind:  # a positional that is called as its kind is
            name = first
        if line.startswith("      "):  # goes on, or what a long name says
            table[-1][1] = (table[-1][1] + " " + line.strip()).strip()
        else:
            table.append([name.replace(",", ", ", 1) if name.startswith("-") else name, says.strip()])


def table(rows):
    for name, says in rows:
        yield ".TP\n\\fB%s\\fR\n%s" % (roff(name), roff(says) or "\\&")


def prose(lines):
    """What follows the tables: paragraphs, and examples as they are."""
    examples = False
    for line in lines:
        if line == "Examples:":
            examples = True
            yield ".PP\nExamples:\n.PP\n.nf"
        elif not line:
            yield ".fi\n.PP" if examples else ".PP"
            examples = False
        else:
            yield roff(line)
    if examples:
        yield ".fi"


def page(program, section, date):
    name = os.path.basename(program)
    main = Help(help_of([program]))
    version = subprocess.run([program, "--version"], capture_output=True, text=True,
                             check=True).stdout.split()[1]
    yield '.TH %s %s %s "Failback %s"' % (name.upper().replace("-", "\\-"), section, date, version)
    yield ".SH NAME\n%s \\- %s" % (roff(name), roff(main.summary[0].lower() + main.summary[1:]))
    yield ".SH SYNOPSIS\n.B %s" % roff(main.usage)
    if "Subcommands" in main.tables:
        yield ".SH COMMANDS"
        yield from table(main.tables["Subcommands"])
    yield ".SH OPTIONS"
    yield from table(main.tables["Options"])
    yield ".SH DESCRIPTION"
    yield from prose(main.rest)
    for command, _ in main.tables.get("Subcommands", []):
        one = Help(help_of([program, command]))
        yield ".SH %s\n%s.\n.PP\n.B %s" % (roff(command).upper(), roff(one.summary), roff(one.usage))
        options = [row for row in one.tables["Options"] if not row[0].startswith("-h")]
        yield from table(one.tables.get("Positionals", []) + options)
        if one.rest:
            yield ".PP"
            yield from prose(one.rest)
    yield ".SH FILES"
    yield from table(FILES[name])
    yield ".SH SEE ALSO\n" + ",\n".join(
        "\\fB%s\\fR(%s)" % (roff(other), number) for other, number in PAGES if other != name)


def main():
    program, section, date = sys.argv[1:]
    print("\n".join(page(program, section, date)))


if __name__ == "__main__":
    main()
