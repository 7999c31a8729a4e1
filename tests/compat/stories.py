"""What has to go well between programs of two versions. Each story is a function of a Stage and of Programs;
it raises Failed, or returns a word for the table."""

import re

from programs import Ctl, check, eventually, same
from subjects import Etcd

# Sessions outlive every pause of a story, so what stays registered stays by what is stored.
LONG = ("--session-ttl", "60s")
# Of gRPC's codes.
UNIMPLEMENTED = 12


def one_session(agent):
    """An agent has opened one session and goes on in it, as its log tells."""
    same(agent.log().count("session=new"), 1, "the number of sessions that the agent has opened")


def refused_as_newer(daemon):
    """It has not started, since what it was to open is of a newer version; and says so."""
    same(daemon.status, 2, "the exit status of what is refused")
    check(re.search(r"newer version|knows \d+ at most", daemon.log()), "refused with", daemon.log()[-500:])


def passes(*chain):
    """Whether what the first follows comes through to it. A program after 0.1.0 follows by Watch, which 0.1.0 does
    not have: then it follows nothing until the other is upgraded (docs/operations.md)."""
    return not any(one.name == "new" and next_one.name == "old" and next_one.version() == "0.1.0"
                   for one, next_one in zip(chain, chain[1:]))


def parked(target, agent):
    """What is followed at an agent is parked, as its registry does not know how."""
    eventually(lambda: set(Ctl(agent).followed(target).values()), {("PENDING_STATE_PARKED", UNIMPLEMENTED)},
               "what the agent follows")


def follow(stage, target, *chain):
    """A follower of `orders` at `target`; `chain` are the versions from failbackctl to the registry. Of one to whom
    nothing comes through: why is said where it ends, and nothing else is asked instead. None: it has ended."""
    if not passes(*chain[:2]):
        status, _, err = Ctl(chain[0]).run(target, "subscribe", "orders", "--count", "1")
        check(status != 0 and "UNIMPLEMENTED" in err and "no Watch stream" in err, "subscribe ends with", status, err)
        return None
    follower = stage.follow(chain[0], target)
    if not passes(*chain):
        parked(target, chain[1])
    return follower


def everyday(stage, registry, agent, ctl):
    """register, list, follow, unregister; an outage and the way back; drain"""
    ctl_of, ctl = ctl, Ctl(ctl)
    server = stage.registry(registry, stage.store()).serving()
    sidecar = stage.agent(agent, server.address, options=("--state-dir", stage.file("state"), *LONG)).serving()
    at = sidecar.address
    ctl.register(at, "a", "--zone", "z1", "--meta", "version=1.10")
    ctl.register(at, "b")
    ctl.register(at, "p", "--persistent")
    followers, waiting = [], None
    for target, chain in ((at, (ctl_of, agent, registry)), (server.address, (ctl_of, registry))):
        follower = follow(stage, target, *chain)
        if follower and passes(*chain):
            followers.append(follower)
        elif follower:
            waiting = follower
    for target in (at, server.address):
        same(ctl.ids(target), ["a", "b", "p"], "the list")
        same([r["instance"]["key"]["instanceId"] for r in ctl.json(target, "list", "--meta", "version=1.10")], ["a"],
             "the list by metadata")
        status, out, err = ctl.run(target, "describe", "orders", "--id", "a", "-o", "json")
        check(status == 0 and "1.10" in out, "describe:", status, err)
        ctl.ok(target, "status")
        ctl.ok(target, "health")
    for follower in followers:
        follower.until({"a", "b", "p"}, "orders")
    ctl.unregister(at, "a")
    ctl.register(at, "b", port=81)
    for follower in followers:
        follower.until({"b", "p"}, "orders")
    same(ctl.ports(server.address), {"b": 81, "p": 80}, "the list")
    same(len(ctl.json(at, "intents")), 2, "the number of intents")
    same(len(ctl.json(server.address, "sessions")), 1, "the number of sessions")
    ctl.ok(server.address, "agents")

    ctl.ok(server.address, "offline", "orders", "--id", "b", "--reason", "compat")
    check("offline" in ctl.json(at, "list", "orders")[0]["instance"], "the mark is not listed")
    ctl.ok(server.address, "online", "orders", "--id", "b")

    server.kill()
    ctl.register(at, "c", wait="accepted")
    ctl.unregister(at, "b", wait="accepted")
    eventually(lambda: ctl.pending(at), ["register default/orders/c", "unregister default/orders/b"], "what is pending")
    server = stage.registry(registry, stage.store(), server.address).serving()
    eventually(lambda: ctl.ids(server.address), ["c", "p"], "the list after the outage")
    eventually(lambda: ctl.pending(at), [], "what is pending after the outage")
    for follower in followers:
        follower.until({"c", "p"}, "orders after the outage")
    if waiting:
        parked(at, agent)
        same(waiting.heard(), [], "what a follower hears whose agent follows nothing")
    ctl.ok(at, "wait-ready")
    ctl.ok(at, "drain")
    same(ctl.ids(server.address), ["p"], "the list after the drain")


def registry_changes(stage, before, after, companion):
    """a registry's store is opened by the other version: sessions, fences and positions go on; `companion` is the
    version of the agent and of failbackctl"""
    ctl = Ctl(companion)
    server = stage.registry(before, stage.store()).serving()
    address = server.address
    sidecar = stage.agent(companion, address, options=LONG).serving()
    at = sidecar.address
    for instance_id in ("a", "b", "gone"):
        ctl.register(at, instance_id)
    ctl.register(at, "p", "--persistent")
    ctl.register(address, "by-hand")
    ctl.unregister(at, "gone")
    ctl.ok(address, "offline", "orders", "--id", "b", "--reason", "compat")
    then = ctl.ready(at)
    records = ctl.json(address, "list", "orders")
    follower = follow(stage, at, companion, companion, before)
    if passes(companion, before):
        follower.until({"a", "b", "p", "by-hand"}, "orders")

    for how in ("SIGTERM", "SIGKILL"):
        server.stop() if how == "SIGTERM" else server.kill()
        other = stage.registry(after, stage.store(), address)
        if other.refused:
            # The way back is a backup; what is there is left alone.
            refused_as_newer(other)
            server = stage.registry(before, stage.store(), address).serving()
            same(ctl.json(address, "list", "orders"), records, "what the store holds after it was refused")
            return "refused, with a word; the store is as it was"
        server = other
        now = ctl.ready(at)
        same((now["storeId"], now["epoch"]), (then["storeId"], then["epoch"]), f"store and epoch after {how}")
        same(ctl.json(address, "list", "orders"), records, f"what is registered after {how}")
        # Also what was parked at the registry of before.
        if passes(companion, after):
            follower.until({"a", "b", "p", "by-hand"}, "orders")
        else:
            parked(at, companion)
        before, after = after, before
    server.kill()
    server = stage.registry(after, stage.store(), address).serving()
    ctl.ready(at)
    ctl.register(at, "c")
    ctl.unregister(at, "a")
    if passes(companion, after):
        follower.until({"b", "c", "p", "by-hand"}, "orders")
    eventually(lambda: ctl.ids(address), ["b", "by-hand", "c", "p"], "the list")
    one_session(sidecar)
    return "both ways"


def agent_changes(stage, before, after, companion):
    """an agent's state directory is opened by the other version: what is accepted and owed arrives; `companion`
    is the version of the registry and of failbackctl"""
    ctl = Ctl(companion)
    server = stage.registry(companion, stage.store()).serving()
    options = ("--state-dir", stage.file("state"), *LONG)
    sidecar = stage.agent(before, server.address, options=options).serving()
    at = sidecar.address
    for instance_id in ("a", "b", "c"):
        ctl.register(at, instance_id)
    ctl.register(at, "p", "--persistent")
    followed = passes(companion, before, companion)
    if followed:
        follower = stage.follow(companion, at)
        follower.until({"a", "b", "c", "p"}, "orders")
        # The last known set is kept as its last subscriber leaves.
        follower.stop()
    eventually(lambda: ctl.upstream(at)["subscriptions"], "0", "the number of subscriptions")
    incarnation = ctl.json(at, "status")["upstreams"][0]["incarnation"]
    server.kill()
    ctl.unregister(at, "a", wait="accepted")
    ctl.register(at, "b", wait="accepted", port=81)
    ctl.register(at, "d", wait="accepted")
    sidecar.kill()
    sidecar = stage.agent(after, server.address, at, options)
    if sidecar.refused:
        refused_as_newer(sidecar)
        sidecar = stage.agent(before, server.address, at, options).serving()
        told = "refused, with a word; the agent of before carries on"
    else:
        same(ctl.json(at, "status")["upstreams"][0]["incarnation"], incarnation, "the incarnation")
        told = "carried on"
    # What is known is served before the registry is back.
    if followed and passes(companion, after):
        check(ctl.json(at, "subscribe", "orders", "--count", "1")["stale"],
              "the last known set is not there, or not stale")
    server = stage.registry(companion, stage.store(), server.address).serving()
    eventually(lambda: ctl.ids(server.address), ["b", "c", "d", "p"], "the list")
    eventually(lambda: ctl.pending(at), [], "what is pending")
    same(ctl.ports(server.address), {"b": 81, "c": 80, "d": 80, "p": 80}, "the list")
    same({r["incarnation"] for r in ctl.json(server.address, "list", "orders")}, {incarnation}, "who registered them")
    return told


def agent_comes_back(stage, before, after, companion):
    """an agent's state directory is opened by the other version as another incarnation, which has nothing to write,
    and by the first again: what is accepted arrives, and no journal is put aside"""
    ctl = Ctl(companion)
    server = stage.registry(companion, stage.store()).serving()
    options = ("--state-dir", stage.file("state"), *LONG)
    sidecar = stage.agent(before, server.address, options=(*options, "--incarnation", "pod-1")).serving()
    at = sidecar.address
    ctl.register(at, "a")
    server.kill()
    ctl.register(at, "b", wait="accepted")
    ctl.unregister(at, "a", wait="accepted")
    for programs, incarnation in ((after, "pod-2"), (before, "pod-2"), (after, "pod-3"), (before, "pod-4")):
        sidecar.kill()
        sidecar = stage.agent(programs, server.address, at, (*options, "--incarnation", incarnation)).serving()
        same(ctl.pending(at), ["register default/orders/b", "unregister default/orders/a"],
             f"what is pending as {incarnation}")
    server = stage.registry(companion, stage.store(), server.address).serving()
    eventually(lambda: ctl.ids(server.address), ["b"], "the list")
    eventually(lambda: ctl.pending(at), [], "what is pending")
    same({r["incarnation"] for r in ctl.json(server.address, "list", "orders")}, {"pod-4"}, "who registered them")
    same(sidecar.log().count("intent journal"), 0, "the number of words about the journal")


def over_etcd(stage, first, second, companion):
    """registries of both versions over one etcd, and an agent that goes from one to the other in its session"""
    ctl = Ctl(companion)
    etcd = stage.own(Etcd(stage.folder))
    store = f"etcd://127.0.0.1:{etcd.client}/compat"
    one = stage.registry(first, store, log="first.log").serving()
    two = stage.registry(second, store, log="second.log").serving()
    sidecar = stage.agent(companion, f"{one.address},{two.address}", options=LONG).serving()
    at = sidecar.address
    ctl.register(at, "a")
    ctl.register(at, "gone")
    ctl.register(at, "p", "--persistent")
    ctl.register(two.address, "by-hand")
    followers = [follow(stage, server.address, companion, version)
                 for version, server in ((first, one), (second, two))]

    def see(number, ids):
        if followers[number]:
            followers[number].until(ids, "orders")

    for number in (0, 1):
        see(number, {"a", "gone", "p", "by-hand"})
    ctl.unregister(at, "gone")
    ctl.ok(two.address, "offline", "orders", "--id", "a", "--reason", "compat")
    same([r["instance"]["key"]["instanceId"] for r in ctl.json(one.address, "list", "orders") if "offline" in r["instance"]],
         ["a"], "what is marked")
    same(ctl.json(one.address, "list", "orders"), ctl.json(two.address, "list", "orders"), "the list at either")
    one.kill()
    ctl.register(at, "b", port=81)
    ctl.unregister(two.address, "by-hand")
    see(1, {"a", "b", "p"})
    one_session(sidecar)
    ctl.ok(two.address, "online", "orders", "--id", "a")
    one = stage.registry(first, store, one.address, log="first.log").serving()
    eventually(lambda: ctl.ids(one.address), ["a", "b", "p"], "the list at the one that was away")
    see(0, {"a", "b", "p"})
    two.kill()
    ctl.register(at, "b", port=82)
    ctl.unregister(at, "p")
    see(0, {"a", "b"})
    same(ctl.ports(one.address), {"a": 80, "b": 82}, "the list")
    one_session(sidecar)


def agents_at_etcd(stage, first, second, companion):
    """agents of both versions at one etcd without a registry between: the later takes the key of the earlier"""
    ctl = Ctl(companion)
    etcd = stage.own(Etcd(stage.folder))
    store = f"etcd://127.0.0.1:{etcd.client}/compat"
    one = stage.agent(first, store, options=LONG, log="first.log").serving()
    ctl.register(one.address, "a")
    ctl.register(one.address, "shared")
    two = stage.agent(second, store, options=LONG, log="second.log").serving()
    ctl.register(two.address, "b")
    ctl.register(two.address, "shared", port=81)
    for agent in (one, two):
        eventually(lambda: ctl.ids(agent.address), ["a", "b", "shared"], "the list")  # pylint: disable=W0640
    follower = follow(stage, one.address, companion, first)
    if follower:
        follower.until({"a", "b", "shared"}, "orders")
    ctl.unregister(one.address, "a")
    ctl.unregister(two.address, "shared")
    if follower:
        follower.until({"b"}, "orders")
    same(ctl.ids(two.address), ["b"], "the list")
