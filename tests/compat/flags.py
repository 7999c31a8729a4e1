"""The flags of the programs and their commands, as `--help` lists them. Each flag of a daemon is a key of its file too."""

import re
import subprocess

from programs import TIMEOUT


def help_of(path, *command):
    return subprocess.run([path, *command, "--help"], capture_output=True, text=True, timeout=TIMEOUT, check=True,
                          stdin=subprocess.DEVNULL).stdout


def flags_in(text):
    """{flag: its values where they are named, as `text|json`}"""
    found = re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)(?: (\S+))?", text, re.M)
    return {flag: value if "|" in value else "" for flag, value in found}


def commands_in(text):
    section = re.search(r"^Subcommands:\n((?:  .*\n)+)", text, re.M)
    return re.findall(r"^  ([a-z][a-z-]*) ", section.group(1), re.M) if section else []


def flags_of(programs):
    """{command: {flag: values}}"""
    found = {}
    for program, path in programs.paths.items():
        text = help_of(path)
        found[program] = flags_in(text)
        for command in commands_in(text):
            found[f"{program} {command}"] = flags_in(help_of(path, command))
    return found
