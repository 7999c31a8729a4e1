"""What is recorded of a version: stores with known contents, and calls with their answers.

Each scene has a folder in the version's data. `make` writes there what the version stores, `start` opens a copy of
it, and `play` makes the calls: of the version itself when it is recorded. A test does the same `start` with today's
programs, and repeats the calls."""

import base64
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import urllib.request

from calls import Recorder, Targets
from failback.admin.v1 import admin_pb2, offline_pb2
from failback.agent.v1 import agent_pb2
from failback.registry.v1 import registry_pb2 as pb
from google.protobuf import duration_pb2
from ports import reserved_address
from programs import TIMEOUT, check, same
from subjects import Etcd

REGISTRY = "/failback.registry.v1.RegistryService/"
ADMIN = "/failback.admin.v1.AdminService/"
AGENT = "/failback.agent.v1.AgentService/"
ACKNOWLEDGED = pb.INTENT_STATE_ACKNOWLEDGED
HOUR = 3600


def instance(instance_id, service="orders", namespace="", port=80, **fields):
    return pb.ServiceInstance(key=key(instance_id, service, namespace), address="10.0.0.1", port=port, **fields)


def key(instance_id, service="orders", namespace=""):
    return pb.InstanceKey(namespace=namespace, service=service, instance_id=instance_id)


def settled(**wanted):
    """Of a GetStatus: the upstream is ready, has nothing on its way, and has these numbers."""
    def of(status):
        upstream = status.upstreams[0]
        return (upstream.state == agent_pb2.UPSTREAM_STATE_READY and
                all(getattr(upstream, name) == value for name, value in {"pending": 0, **wanted}.items()))
    return of


class Calls:
    """The calls of the API by their names, at one server, recorded."""

    def __init__(self, recorder, at, token=None):
        self._recorder, self._at, self._token = recorder, at, token

    def __call__(self, path, request, until=None):
        return self._recorder.call(self._at, path, request, until, self._token)

    def open(self, incarnation, ttl=HOUR, **fields):
        return self(REGISTRY + "OpenSession", pb.OpenSessionRequest(
            incarnation=incarnation, ttl=duration_pb2.Duration(seconds=ttl), client_name=f"client of {incarnation}",
            **fields))

    def close(self, session):
        return self(REGISTRY + "CloseSession", pb.CloseSessionRequest(session_id=session))

    def register(self, session, *instances, generation=0, wait=ACKNOWLEDGED, check=False):
        return self(REGISTRY + "Register", self.registration(session, *instances, generation=generation, wait=wait,
                                                             check=check))

    @staticmethod
    def registration(session, *instances, generation=0, wait=ACKNOWLEDGED, **fields):
        return pb.RegisterRequest(session_id=session, wait_for=wait, **fields, registrations=[
            pb.Registration(instance=i, generation=generation) for i in instances])

    def unregister(self, session, *keys, generation=0, wait=ACKNOWLEDGED):
        return self(REGISTRY + "Unregister", pb.UnregisterRequest(session_id=session, wait_for=wait, deregistrations=[
            pb.Deregistration(key=k, generation=generation) for k in keys]))

    def list(self, service="", namespace="", until=None, **fields):
        return self(REGISTRY + "List", pb.ListRequest(selector=pb.Selector(namespace=namespace, service=service),
                                                      **fields), until)

    def offline(self, k, is_offline, **fields):
        return self(ADMIN + "SetOffline", offline_pb2.SetOfflineRequest(key=k, offline=is_offline, **fields))

    def stream(self, name):
        return Streamed(self._recorder, self._recorder.open(self._at, REGISTRY + name, self._token))

    def subscribe(self, **fields):
        stream = self.stream("Subscribe")
        stream.send(pb.SubscribeRequest(**fields))
        return stream


def administered(at):
    """What the console asks."""
    at(ADMIN + "GetOverview", admin_pb2.GetOverviewRequest(), lambda overview: overview.readiness.ready)
    at(ADMIN + "ListServices", admin_pb2.ListServicesRequest())
    at(ADMIN + "ListInstances", admin_pb2.ListInstancesRequest(service="orders"))
    at(ADMIN + "DescribeInstance", admin_pb2.DescribeInstanceRequest(key=key("s1")))
    at(ADMIN + "DescribeInstance", admin_pb2.DescribeInstanceRequest(key=key("nothing")))


class Streamed:
    def __init__(self, recorder, name):
        self._recorder, self._name = recorder, name

    def send(self, request):
        self._recorder.send(self._name, request)

    def receive(self):
        return self._recorder.receive(self._name)

    def ask(self, request):
        self.send(request)
        return self.receive()


def registered(response):
    check(not any(r.status.code for r in response.results), "refused:", response)


# In how many commits an agent's intents arrive is a matter of time, and so is what a server over etcd writes by itself.
REVISIONS = ("revision", "base_revision", "create_revision", "modify_revision")


class Scene:
    name = ""
    free = ()  # fields that may differ from answer to answer

    def make(self, stage, programs, messages, folder):
        """Writes what the version stores into `folder`. Returns ids that later answers have as they are."""
        return []

    def start(self, stage, programs, folder):
        """{server: a function that starts it and returns its address}"""
        raise NotImplementedError

    def play(self, recorder):
        raise NotImplementedError


class RegistryCalls(Scene):
    """Every call of a registry, at an empty one."""
    name = "registry"

    def start(self, stage, programs, folder):
        return {"registry": lambda: stage.registry(
            programs, "memory:", options=("--limits-max-batch", "5")).serving().address}

    def play(self, recorder):
        at = Calls(recorder, "registry")
        first, second = at.open("first"), at.open("second", ttl=2 * HOUR)
        at.open("first")
        at.open("short", ttl=0)
        at.open("")
        one, two = first.session_id, second.session_id
        registered(at.register(one, instance("a", zone="z", metadata={"version": "1"}, weight=7), generation=1))
        registered(at.register(one, instance("b", status=pb.HEALTH_STATUS_DRAINING),
                               instance("c", namespace="staging"), generation=2))
        registered(at.register("", instance("detached", persistent=True)))
        at.register(one, instance("a", port=81), generation=1)
        at.register(one, instance("a", port=70000), instance("bad", service="no spaces"), generation=3)
        at.register(one, *[instance(f"i{n}") for n in range(6)], generation=3)
        at.register("unknown", instance("a"), generation=1)
        at.register(two, instance("b", port=82), generation=1)
        at.register(one, instance("b", port=83), generation=4)

        stream = at.subscribe(selector=pb.Selector(service="orders"), session_id=one, subscription_id="all")
        before = stream.receive()
        healthy = at.subscribe(selector=pb.Selector(service="orders", zones=["z"], metadata={"version": "1"}))
        healthy.receive()
        names = at.subscribe(selector=pb.Selector())
        names.receive()
        at.unregister(one, key("a"), generation=5)
        for followed in (stream, healthy, names):
            followed.receive()
        at.register(one, instance("a"), generation=4)
        at.unregister(one, key("nothing", service="nothing"), generation=6)
        at.unregister(one, key("b"), generation=7)
        resumed = at.subscribe(selector=pb.Selector(service="orders"), epoch=before.epoch, revision=before.revision)
        resumed.receive()
        at(REGISTRY + "Subscribe", pb.SubscribeRequest(selector=pb.Selector(service="no spaces")))
        at(REGISTRY + "Unsubscribe", pb.UnsubscribeRequest(session_id=one, subscription_id="all", generation=1))
        at(REGISTRY + "Unsubscribe", pb.UnsubscribeRequest(session_id=one))

        registers = at.stream("RegisterStream")
        registers.ask(at.registration(one, instance("s1"), instance("s2"), generation=8))
        registers.ask(at.registration(one, instance("s1", port=70000), generation=9))
        registers.ask(at.registration("unknown", instance("s1"), generation=10))
        renewals = at.stream("KeepAlive")
        renewals.ask(pb.KeepAliveRequest(session_id=one))
        renewals.ask(pb.KeepAliveRequest(session_id="unknown"))
        renewals.ask(pb.KeepAliveRequest(session_id=two, report=pb.AgentReport(
            name="an agent", version="0.1.0", intents=5, pending=3, parked=2, superseded=1)))

        at.list()
        at.list(namespace="staging")
        page = at.list(page_size=2)
        at.list(page_size=2, page_token=page.next_page_token)
        at.list(page_token="not a token")
        at(REGISTRY + "List", pb.ListRequest(incarnation="first"))
        at.list(service="orders", namespace="no such/namespace")

        marks = at.subscribe(selector=pb.Selector(service="orders", statuses=[pb.HEALTH_STATUS_UNHEALTHY]))
        marks.receive()
        at.offline(key("s1"), True, reason="maintenance", by="an operator")
        marks.receive()
        at.offline(key("s1"), True, reason="maintenance", by="an operator")
        at.list("orders")
        at.offline(key("s1"), False)
        marks.receive()
        at.offline(key("nothing"), True)
        administered(at)
        at(ADMIN + "SetEvictionGuard", admin_pb2.SetEvictionGuardRequest())
        at(ADMIN + "ListSessions", admin_pb2.ListSessionsRequest())
        at(ADMIN + "ListAgents", admin_pb2.ListAgentsRequest())
        at(AGENT + "GetStatus", agent_pb2.GetStatusRequest())
        at.close(two)
        at.close(two)
        at.list()


class AgentCalls(Scene):
    """Every call of an agent, with an empty registry behind it."""
    name = "agent"
    # A superseded intent is tried again meanwhile, how often is a matter of time.
    # The overview of 0.1.0 has of an agent's instances the total alone.
    free = REVISIONS + ("failback.agent.v1.PendingOperation.times", "failback.admin.v1.Overview.instances",
                        "failback.admin.v1.Overview.services")

    def start(self, stage, programs, folder):
        address = reserved_address()

        def agent():
            config = stage.file("agent.yaml")
            with open(config, "w", encoding="utf-8") as file:
                file.write("services:\n  - {name: static, id: s, address: 10.0.0.1, port: 80, checks: "
                           "[{name: beat, ttl: {ttl: 1h}}]}\n")
            return stage.agent(programs, address, options=(
                "--config", config, "--client-name", "the agent", "--incarnation", "incarnation", "--session-ttl",
                "60s")).serving().address
        return {"registry": lambda: stage.registry(programs, "memory:", address).serving().address, "agent": agent}

    def play(self, recorder):
        upstream, at = Calls(recorder, "registry"), Calls(recorder, "agent")
        upstream.list()
        status = AGENT + "GetStatus"
        at(status, agent_pb2.GetStatusRequest(), settled())
        registered(at.register("", instance("a", zone="z", metadata={"version": "1"})))
        registered(at.register("", instance("p", persistent=True)))
        at.register("", instance("bad", port=70000))
        local = at.open("local-client").session_id
        registered(at.register(local, instance("l1"), instance("l2")))
        renewals = at.stream("KeepAlive")
        renewals.ask(pb.KeepAliveRequest(session_id=local))
        registers = at.stream("RegisterStream")
        registers.ask(at.registration(local, instance("l3")))
        stream = at.subscribe(selector=pb.Selector(service="orders"))
        stream.receive()
        upstream.register("", instance("by-hand"))
        stream.receive()
        at.list("orders", until=lambda page: len(page.records) == 6)
        at.unregister("", key("a"))
        stream.receive()
        at.unregister("", key("never"))

        # A later incarnation at the registry takes a key.
        later = upstream.open("later")
        registered(upstream.register(later.session_id, instance("p", port=90), generation=1))
        stream.receive()
        at.register("", instance("p", persistent=True, port=91), wait=pb.INTENT_STATE_ACCEPTED)
        at(status, agent_pb2.GetStatusRequest(), settled(superseded=1))
        pending = AGENT + "ListPending"
        at(pending, agent_pb2.ListPendingRequest(), lambda answer: len(answer.operations) == 1)
        at(AGENT + "ListIntents", agent_pb2.ListIntentsRequest())
        at(AGENT + "ListIntents", agent_pb2.ListIntentsRequest(states=[pb.INTENT_STATE_SUPERSEDED]))
        at(AGENT + "Retry", agent_pb2.RetryRequest(
            selector=agent_pb2.PendingSelector(ids=["register default/orders/p"]), wait=duration_pb2.Duration(seconds=30)))
        at(AGENT + "Retry", agent_pb2.RetryRequest(selector=agent_pb2.PendingSelector(ids=["register no/such/one"])))
        at(AGENT + "Cancel", agent_pb2.CancelRequest())
        at(AGENT + "Cancel", agent_pb2.CancelRequest(selector=agent_pb2.PendingSelector(ids=["register default/orders/p"])))
        at(pending, agent_pb2.ListPendingRequest(), lambda answer: not answer.operations)
        administered(at)
        at(AGENT + "ReportHealth", agent_pb2.ReportHealthRequest(service="static", state=agent_pb2.CHECK_STATE_PASSING))
        at(AGENT + "ReportHealth", agent_pb2.ReportHealthRequest(service="nothing", state=agent_pb2.CHECK_STATE_PASSING))
        upstream.list("static", until=lambda page: len(page.records) == 1)
        at.offline(key("l1"), True, reason="maintenance")
        at.list("orders", until=lambda page: any(r.instance.HasField("offline") for r in page.records))
        at.close(local)
        upstream.list("orders", until=lambda page: len(page.records) == 2)
        at(AGENT + "Drain", agent_pb2.DrainRequest(deadline=duration_pb2.Duration(seconds=30)))
        at.register("", instance("late"))
        upstream.list()


TOKENS = {"team-a": "token of team a", "team-b": "token of team b"}


def tokens_file(stage):
    """Callers with names: what is stored has owners."""
    path = stage.file("tokens.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write("tokens:\n")
        for name, token in TOKENS.items():
            file.write(f"- name: {name}\n  sha256: {hashlib.sha256(token.encode()).hexdigest()}\n")
    return path


def fill(a, b):
    """What a store has: the session ids of incarnations a and b. `a` and `b` are Calls of two callers."""
    one = a.open("incarnation-a").session_id
    two = b.open("incarnation-b").session_id
    registered(a.register(one, instance("a-1", zone="z1", metadata={"version": "1.10"}, weight=7,
                                        status=pb.HEALTH_STATUS_DRAINING),
                          instance("a-2"), instance("a-1", namespace="staging"), generation=1))
    registered(a.register(one, instance("ledger-1", service="ledger", persistent=True), generation=2))
    registered(a.register(one, instance("gone"), generation=3))
    registered(a.unregister(one, key("gone"), generation=4))
    registered(a.register(one, instance("taken"), generation=5))
    registered(b.register(two, instance("taken", port=81), instance("b-1"), generation=1))
    registered(a.register("", instance("by-hand"), instance("by-hand", namespace="staging", persistent=True)))
    ended = a.open("incarnation-c").session_id
    registered(a.register(ended, instance("c-1"), instance("c-2", persistent=True), generation=1))
    a.close(ended)
    return [one, two]


def look(a, b, one, two):
    """What is in such a store, and what it still refuses."""
    for namespace in ("", "staging"):
        a.list(namespace=namespace)
    a(REGISTRY + "List", pb.ListRequest(incarnation="incarnation-a"))
    stream = a.subscribe(selector=pb.Selector(service="orders"))
    stream.receive()
    again = a.open("incarnation-a")
    same((again.session_id, again.resumed), (one, True), "the session")
    a.stream("KeepAlive").ask(pb.KeepAliveRequest(session_id=one))
    b.stream("KeepAlive").ask(pb.KeepAliveRequest(session_id=two))
    # Late calls of before the unregister, and of an incarnation that has been succeeded.
    late = a.register(one, instance("gone"), generation=3)
    check(late.results[0].status.code, "a call of before the unregister is taken")
    late = a.register(one, instance("taken"), generation=6)
    check(late.results[0].status.code, "a call of an earlier incarnation is taken")
    a.register(one, instance("a-2", port=99), generation=1)
    a.open("incarnation-c")
    a.open("incarnation-d")
    registered(a.register(one, instance("gone", port=82), generation=7))
    stream.receive()
    registered(a.unregister(one, key("ledger-1", service="ledger"), generation=8))
    registered(a.unregister("", key("by-hand")))
    stream.receive()
    b.close(two)
    stream.receive()
    for namespace in ("", "staging"):
        a.list(namespace=namespace)


class Store(Scene):
    """A registry's SQLite file."""
    name = "store"
    file = "registry.db"

    def make(self, stage, programs, messages, folder):
        server = stage.registry(programs, stage.store(), options=("--known-tokens-file", tokens_file(stage))).serving()
        with recording(messages, {"registry": lambda: server.address}) as recorder:
            a, b = (Calls(recorder, "registry", token) for token in TOKENS.values())
            sessions = fill(a, b)
            a.offline(key("a-2"), True, reason="maintenance", by="an operator")
        server.stop()
        shutil.copyfile(stage.file("registry.db"), os.path.join(folder, self.file))
        return sessions

    def start(self, stage, programs, folder):
        shutil.copyfile(os.path.join(folder, self.file), stage.file("registry.db"))
        checked = subprocess.run([programs.paths["failback-registry"], "check", "--store", stage.store()],
                                 capture_output=True, text=True, timeout=TIMEOUT, check=False)
        same(checked.returncode, 0, "the exit status of `check`, which says " + checked.stderr)
        return {"registry": lambda: stage.registry(
            programs, stage.store(), options=("--known-tokens-file", tokens_file(stage))).serving().address}

    def play(self, recorder):
        a, b = (Calls(recorder, "registry", token) for token in TOKENS.values())
        marked = [r for r in a.list("orders").records if r.instance.HasField("offline")]
        same([r.instance.key.instance_id for r in marked], ["a-2"], "what is marked")
        one, two = (calls.open(f"incarnation-{n}").session_id for n, calls in (("a", a), ("b", b)))
        # The incarnation and the session are their owner's.
        b.open("incarnation-a")
        b.register(one, instance("a-2"), generation=9)
        look(a, b, one, two)
        a.offline(key("a-2"), False)
        a(ADMIN + "ListSessions", admin_pb2.ListSessionsRequest())


class EtcdKeys(Scene):
    """A registry's keys in etcd, with their revisions and the TTLs of their leases."""
    name = "etcd"
    free = REVISIONS
    file = "keys.json"
    prefix = "compat"

    def make(self, stage, programs, messages, folder):
        etcd = stage.own(Etcd(stage.folder))
        server = stage.registry(programs, f"etcd://127.0.0.1:{etcd.client}/{self.prefix}").serving()
        with recording(messages, {"registry": lambda: server.address}) as recorder:
            calls = Calls(recorder, "registry")
            sessions = fill(calls, calls)
            calls.offline(key("a-2"), True, reason="maintenance", by="an operator")
        server.kill()
        with open(os.path.join(folder, self.file), "w", encoding="utf-8") as file:
            json.dump(dump(etcd.client), file, indent=1)
        return sessions

    def start(self, stage, programs, folder):
        etcd = stage.own(Etcd(stage.folder))
        with open(os.path.join(folder, self.file), encoding="utf-8") as file:
            load(etcd.client, json.load(file))
        return {"registry": lambda: stage.registry(
            programs, f"etcd://127.0.0.1:{etcd.client}/{self.prefix}").serving().address}

    def play(self, recorder):
        calls = Calls(recorder, "registry")
        one, two = (calls.open(f"incarnation-{n}").session_id for n in "ab")
        look(calls, calls, one, two)
        calls.offline(key("a-2"), False)


def gateway(port, path, **fields):
    """A call of etcd's JSON gateway."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v3/{path}", json.dumps(fields).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


_ALL = {"key": base64.b64encode(b"\0").decode(), "range_end": base64.b64encode(b"\0").decode()}


def dump(port):
    """The keys with their revisions, and the granted TTL of each lease, in seconds."""
    everything = gateway(port, "kv/range", **_ALL)
    keys = [{"key": base64.b64decode(kv["key"]).decode(), "value": kv.get("value", ""),
             "create_revision": int(kv["create_revision"]), "mod_revision": int(kv["mod_revision"]),
             "lease": kv.get("lease", "0")} for kv in everything["kvs"]]
    leases = gateway(port, "lease/leases").get("leases", [])
    return {"revision": int(everything["header"]["revision"]), "keys": keys, "leases": {
        lease["ID"]: int(gateway(port, "lease/timetolive", ID=lease["ID"])["grantedTTL"]) for lease in leases}}


def load(port, dumped):
    """Puts the keys into an empty etcd at the revisions at which they were put: a key's revision is what ranks an
    incarnation. What had been deleted is put aside and deleted."""
    for lease, ttl in dumped["leases"].items():
        gateway(port, "lease/grant", ID=lease, TTL=ttl)
    at = int(gateway(port, "kv/range", **_ALL)["header"]["revision"])
    aside = base64.b64encode(b"aside").decode()
    for revision in range(at + 1, dumped["revision"] + 1):
        puts = [{"request_put": {"key": base64.b64encode(kv["key"].encode()).decode(), "value": kv["value"],
                                 "lease": kv["lease"]}}
                for kv in dumped["keys"] if revision in (kv["create_revision"], kv["mod_revision"])]
        done = gateway(port, "kv/txn", success=puts or [{"request_put": {"key": aside}}])
        same(int(done["header"]["revision"]), revision, "the revision")
    if dumped["revision"] > at:
        left = {(kv["key"], kv["create_revision"], kv["mod_revision"]) for kv in dump(port)["keys"]}
        for kv in dumped["keys"]:
            check((kv["key"], kv["create_revision"], kv["mod_revision"]) in left, kv["key"], "is not as it was")


class Journal(Scene):
    """An agent's state directory: registers that were acknowledged and accepted, a superseded and a parked one,
    unregisters that are owed, one that was cancelled, a local session's, a last known set."""
    name = "journal"
    free = REVISIONS
    folder = "state"
    agent_options = ("--client-name", "the agent", "--session-ttl", "60s")

    def make(self, stage, programs, messages, folder):
        # With the static limit the last one is parked.
        registry = stage.registry(programs, stage.store(), options=("--limits-max-instances-per-session", "9")).serving()
        agent = stage.agent(programs, registry.address,
                            options=("--state-dir", stage.file(self.folder), *self.agent_options)).serving()
        status = AGENT + "GetStatus"
        with recording(messages, {"registry": lambda: registry.address, "agent": lambda: agent.address}) as recorder:
            upstream, at = Calls(recorder, "registry"), Calls(recorder, "agent")
            for instance_id in ("a", "b", "cancelled", "gone"):
                registered(at.register("", instance(instance_id)))
            registered(at.register("", instance("c", persistent=True)))
            registered(at.unregister("", key("gone")))
            local = at.open("local-client").session_id
            registered(at.register(local, instance("local", metadata={"of": "a client"})))
            later = upstream.open("later").session_id
            registered(upstream.register(later, instance("superseded"), generation=1))
            at.register("", instance("superseded", port=81), wait=pb.INTENT_STATE_ACCEPTED)
            at(status, agent_pb2.GetStatusRequest(), settled(superseded=1))
            for n in range(4):
                registered(at.register("", instance(f"m-{n}", service="many")))
            at.register("", instance("parked"), wait=pb.INTENT_STATE_ACCEPTED)
            at(status, agent_pb2.GetStatusRequest(), lambda got: got.upstreams[0].parked == 1)
            at.subscribe(selector=pb.Selector(service="orders")).receive()
            recorder.end()  # the last known set is kept as its last subscriber leaves
            incarnation = at(status, agent_pb2.GetStatusRequest(),
                             lambda got: got.upstreams[0].subscriptions == 0).upstreams[0].incarnation
            registry.kill()
            at.register("", instance("a", port=82), wait=pb.INTENT_STATE_ACCEPTED)
            at.register("", instance("e"), wait=pb.INTENT_STATE_ACCEPTED)
            at.unregister("", key("b"), wait=pb.INTENT_STATE_ACCEPTED)
            at.unregister("", key("c"), wait=pb.INTENT_STATE_ACCEPTED)
            at.unregister("", key("cancelled"), wait=pb.INTENT_STATE_ACCEPTED)
            at(AGENT + "Cancel", agent_pb2.CancelRequest(
                selector=agent_pb2.PendingSelector(ids=["unregister default/orders/cancelled"])))
            at.list("orders")  # what is asked after it is answered after it is written
        agent.kill()
        shutil.copytree(stage.file(self.folder), os.path.join(folder, self.folder),
                        ignore=shutil.ignore_patterns("lock"))
        for path in journals(os.path.join(folder, self.folder)):
            with closing_sqlite(path) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            for suffix in ("-wal", "-shm"):
                if os.path.exists(path + suffix):
                    os.remove(path + suffix)
        return [incarnation]

    def start(self, stage, programs, folder):
        state = stage.file(self.folder)
        shutil.copytree(os.path.join(folder, self.folder), state, copy_function=shutil.copyfile)
        self.prepare(state)
        address = reserved_address()
        return {
            "registry": lambda: stage.registry(programs, "memory:", address).serving().address,
            "agent": lambda: stage.agent(programs, address, options=("--state-dir", state,
                                                                     *self.agent_options)).serving().address}

    @staticmethod
    def prepare(state):
        """The copy is not taken for one: without the count and the mark by which copies are noticed."""
        for path in journals(state):
            with closing_sqlite(path) as db:
                db.execute("DELETE FROM meta WHERE name = 'writes'")
            if os.path.exists(path + ".mark"):
                os.remove(path + ".mark")

    def play(self, recorder):
        upstream, at = Calls(recorder, "registry"), Calls(recorder, "agent")
        # The registry has of the agent what it had acknowledged.
        session = upstream.open(recorder.fixed[0]).session_id
        registered(upstream.register(session, *[instance(i) for i in ("a", "b", "cancelled")],
                                     instance("c", persistent=True), generation=1))
        at(AGENT + "GetStatus", agent_pb2.GetStatusRequest(), self.carried)
        for calls in (upstream, at):
            calls.list()
        at(AGENT + "ListIntents", agent_pb2.ListIntentsRequest())
        at(AGENT + "ListPending", agent_pb2.ListPendingRequest())
        at.subscribe(selector=pb.Selector(service="orders")).receive()
        registered(at.register("", instance("new")))
        at.open("local-client")
        upstream.list("orders", until=lambda page: any(r.instance.key.instance_id == "new" for r in page.records))
        self.sane(upstream)

    @staticmethod
    def carried(status):
        upstream = status.upstreams[0]
        return upstream.state == agent_pb2.UPSTREAM_STATE_READY and upstream.pending == 0 and upstream.acknowledged > 0

    @staticmethod
    def sane(upstream):
        listed = {r.instance.key.instance_id: r.instance.port for r in upstream.list("orders").records}
        same(listed.get("a"), 82, "the port of what was updated")
        check(not {"b", "c", "gone"} & set(listed), "what was unregistered is there:", listed)
        check({"e", "local", "parked", "superseded"} <= set(listed), "not carried:", listed)


class CopiedJournal(Journal):
    """The same, taken for the copy that it is: the registry is asked what of it still holds."""
    name = "copied-journal"

    @staticmethod
    def prepare(state):
        pass

    @staticmethod
    def carried(status):
        upstream = status.upstreams[0]
        return (upstream.state == agent_pb2.UPSTREAM_STATE_READY and upstream.pending == 0 and upstream.acknowledged > 0
                and upstream.parked > 0)

    @staticmethod
    def sane(upstream):
        pass


def journals(state):
    return [os.path.join(path, file) for path, _, files in os.walk(state) for file in files if file == "journal.db"]


class closing_sqlite:  # pylint: disable=C0103
    """A database that is committed and closed."""

    def __init__(self, path):
        self._db = sqlite3.connect(path)

    def __enter__(self):
        return self._db

    def __exit__(self, *error):
        self._db.commit()
        self._db.close()


class recording:  # pylint: disable=C0103
    """A Recorder whose channels are closed at the end."""

    def __init__(self, messages, addresses, fixed=()):
        self._targets = Targets(addresses)
        self._recorder = Recorder(messages, self._targets)
        self._recorder.fixed = list(fixed)

    def __enter__(self):
        return self._recorder

    def __exit__(self, *error):
        self._recorder.end()
        self._targets.close()


SCENES = [RegistryCalls(), AgentCalls(), Store(), EtcdKeys(), Journal(), CopiedJournal()]
