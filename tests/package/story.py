"""The main job by hand, with the programs of a system: services stay registered through the registry's outage."""

from bare import eventually


class Story:
    """A registry and an agent of one system. `prefix` is where the programs are."""

    def __init__(self, system, prefix="", users=("failback-registry", "failback-agent"), registry=None,
                 agent=None):
        self.system, self.prefix = system, prefix
        self.registry_user, self.agent_user = [user + ":" + user for user in users]
        self.registry_words = [prefix + "failback-registry"] + (registry or [
            "--config", "/etc/failback/registry.yaml"])
        self.agent_words = [prefix + "failback-agent"] + (agent or ["--config", "/etc/failback/agent.yaml"])
        self.registry = self.agent = None

    def start_registry(self):
        self.registry = self.system.start(self.registry_user, *self.registry_words)

    def start_agent(self):
        self.agent = self.system.start(self.agent_user, *self.agent_words)

    def stop(self):
        for process in (self.agent, self.registry):
            process.terminate()
            assert process.wait(30) == 0, process.args
        self.agent = self.registry = None

    def ctl(self, *words):
        return self.system.get(self.prefix + "failbackctl", *words, user=self.agent_user)

    def listed(self):
        """The ids that the registry has."""
        out = self.ctl("--target", "127.0.0.1:7070", "list", "orders")
        return [line.split()[1] for line in out.splitlines()[1:]]

    def main_job(self):
        self.start_registry()
        self.start_agent()
        out = self.ctl("register", "orders", "--id", "orders-1", "--address", "10.0.0.7", "--port", "8080",
                       "--wait", "acknowledged")
        assert out == "registered default/orders/orders-1: acknowledged\n", out
        assert self.listed() == ["orders-1"], self.listed()
        self.registry.kill()
        self.registry.wait()
        out = self.ctl("register", "orders", "--id", "orders-3", "--address", "10.0.0.9", "--port", "8080")
        assert out == "registered default/orders/orders-3: accepted\n", out
        self.ctl("unregister", "orders", "--id", "orders-1")
        pending = self.ctl("pending")
        assert "orders-1" in pending and "orders-3" in pending, pending
        self.start_registry()
        eventually(lambda: self.listed() == ["orders-3"], "the registry has what was submitted in its outage")
        assert "orders" not in self.ctl("pending")
