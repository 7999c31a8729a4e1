"""Completion in real shells: bash and zsh at a terminal with the Tab key, fish by its own `complete -C`."""

import os
import shutil
import subprocess
import tempfile
import unittest

import daemons
from daemons import CTL, Terminal, ctl, wait_for


def script(shell):
    status, out, err = ctl("127.0.0.1:1", "completion", shell)
    assert status == 0, err
    return out


def ask(*words):
    """The values that the program itself offers."""
    lines = subprocess.run([CTL, "__complete", *words], capture_output=True, text=True, check=True,
                           timeout=daemons.TIMEOUT).stdout.splitlines()
    return lines[0], [line.split("\t")[0] for line in lines[1:]]


class CompletionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.registry = daemons.registry()
        cls.addClassCleanup(cls.registry.kill)
        cls.agent = daemons.agent(cls.registry)
        cls.addClassCleanup(cls.agent.kill)
        daemons.register(cls.agent.address, "orders", "orders-1")
        daemons.register(cls.agent.address, "carts", "10.0.0.7:8080")
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="fb-"))
        os.symlink(CTL, os.path.join(cls.folder, "failbackctl"))
        for shell in ("bash", "zsh", "fish"):
            with open(os.path.join(cls.folder, "complete." + shell), "w", encoding="utf-8") as file:
                file.write(script(shell))
        cls.env = {"PATH": cls.folder + ":" + os.environ["PATH"], "HOME": cls.folder,
                   "FAILBACK_TARGET": cls.agent.address}

    def test_the_program_knows_what_comes_next(self):
        at = ["--target", self.agent.address]
        self.assertEqual(ask("sub"), ("values", ["subscribe"]))
        self.assertEqual(ask("--target", "x", "un"), ("values", ["unregister"]))
        self.assertIn("list", ask("")[1])
        self.assertEqual(ask("-o", ""), ("values", ["table", "json", "yaml"]))
        self.assertEqual(ask("list", "--output=y"), ("values", ["--output=yaml"]))
        self.assertEqual(ask("register", "--wait", "ack"), ("values", ["acknowledged"]))
        self.assertEqual(ask("register", "--persis"), ("values", ["--persistent"]))
        self.assertEqual(ask("list", "--targ"), ("values", ["--target"]))
        self.assertEqual(ask("completion", ""), ("values", ["bash", "zsh", "fish"]))
        self.assertEqual(ask("register", "-f", ""), ("files", []))
        for words, values in ((["list", ""], ["carts", "orders"]),
                              (["unregister", "orders", "--id", ""], ["orders-1"]),
                              (["retry", "--upstream", "grpc"], ["grpc://" + self.registry.address])):
            wait_for(lambda: ask(*at, *words) == ("values", values))  # pylint: disable=cell-var-from-loop
        # Where no daemon answers, and where nothing fits, there is nothing.
        self.assertEqual(ask("-t", "127.0.0.1:1", "list", ""), ("values", []))
        self.assertEqual(ask("no-such-command", ""), ask(""))
        self.assertEqual(ask("list", "--no-such-flag", "x"), ("values", []))

    def terminal(self, argv):
        terminal = Terminal(argv, columns=200, env=self.env)
        self.addCleanup(terminal.close)
        return terminal

    def complete_at_terminal(self, shell, keys, expected):
        """Until it is so: on a busy machine the target may not answer within the second that a person waits."""

        def line():
            begin = len(shell.output)
            # Tab, and Ctrl-X, which prints the line and empties it. No Ctrl-U: the terminal itself takes
            # that one while the shell does not look.
            shell.type(keys + "\t\x18")
            begin = shell.wait_for("line:", begin)
            return shell.output[begin:shell.wait_for(":\r\n", begin) - 3]

        wait_for(lambda: line() == expected, lambda: shell.output)

    def try_shell(self, shell):
        for keys, expected in (
                ("subs", "subscribe "), ("list or", "list orders "),
                ("unregister carts --id 10.0", "unregister carts --id 10.0.0.7:8080 "),
                ("-o y", "-o yaml "), ("register --file complete.z", "register --file complete.zsh ")):
            self.complete_at_terminal(shell, "failbackctl " + keys, "failbackctl " + expected)

    def test_bash(self):
        shell = self.terminal(["bash", "--norc", "--noprofile", "-i"])
        shell.type("cd; show() { echo \"line:$READLINE_LINE:\"; READLINE_LINE=; }; "
                   "bind -x '\"\\C-x\": show'; . ./complete.bash; echo at$((1))\r")
        shell.wait_for("at1")
        self.try_shell(shell)

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh(self):
        subprocess.run(["zsh", "-n", self.folder + "/complete.zsh"], check=True)
        shell = self.terminal(["zsh", "-f", "-i"])
        shell.type("cd; autoload -U compinit; compinit -u -D; . ./complete.zsh; "
                   "show() { zle -I; print -r -- \"line:$BUFFER:\"; BUFFER= }; zle -N show; "
                   "bindkey '^X' show; echo at$((1))\r")
        shell.wait_for("at1\r\n")
        self.try_shell(shell)

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish(self):
        subprocess.run(["fish", "-n", self.folder + "/complete.fish"], check=True)

        def complete(line):
            out = subprocess.run(
                ["fish", "--no-config", "-c",
                 "source complete.fish; complete -C %s" % repr(line)], cwd=self.folder,
                env=dict(os.environ, **self.env), capture_output=True, text=True, check=True,
                timeout=daemons.TIMEOUT).stdout
            return [candidate.split("\t")[0] for candidate in out.splitlines()]

        self.assertEqual(complete("failbackctl subs"), ["subscribe"])
        wait_for(lambda: complete("failbackctl list ") == ["carts", "orders"])
        wait_for(lambda: complete("failbackctl unregister carts --id 10.") == ["10.0.0.7:8080"])
        self.assertEqual(complete("failbackctl -o "), ["json", "table", "yaml"])
        self.assertIn("complete.zsh", complete("failbackctl register --file complete."))


if __name__ == "__main__":
    unittest.main()
