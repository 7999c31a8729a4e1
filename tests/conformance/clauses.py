"""The clauses: each is one statement of docs/protocol.md, as a caller sees it. `CLAUSES` has them in order."""

import signal

import grpc
from google.protobuf import duration_pb2

from failback.admin.v1 import offline_pb2
from failback.registry.v1 import registry_pb2 as pb
from world import (DRAINING, TIMEOUT, UNHEALTHY, Refusal, Renewing, World, check, matches, reason_of,
                   reason_of_item, refused, same)

CLAUSES = {}  # by id, in order
PARTS = {}  # the part of the page that a clause belongs to


def part(title):
    def clause(function):
        name = function.__name__.replace("_", "-")
        CLAUSES[name] = function
        PARTS[name] = title
        return function
    return clause


# --- Sessions.

session = part("Sessions")


@session
def a_session_tells_what_a_client_needs(w):
    """OpenSession answers with an id, a TTL, a rank, the store, its epoch, and the limits"""
    s = w.open(ttl=30)
    check(s.session_id and s.store_id and s.epoch, s)
    check(s.rank >= 1, s)
    same(s.ttl.seconds, 30, "ttl")
    check(not s.resumed, s)
    check(s.limits.max_batch >= 100 and s.limits.max_request_bytes >= 1 << 20, s.limits)


@session
def no_ttl_means_the_default_and_a_short_one_is_raised(w):
    """an unset TTL is the server's default; one below its limits is raised to them"""
    s = w.stub.OpenSession(pb.OpenSessionRequest(incarnation=w.name), timeout=TIMEOUT)
    same(s.ttl.seconds, 10, "ttl")
    check(w.open(ttl=0.1).ttl.ToMilliseconds() >= 1000, "shorter than a second")


@session
def a_second_open_of_the_incarnation_resumes(w):
    """a second OpenSession of a living incarnation returns the same session, with what is in it"""
    s = w.open("x")
    w.registered(s, w.instance("a"), generation=1)
    again = w.open("x")
    same((again.session_id, again.resumed, again.rank), (s.session_id, True, s.rank))
    same(w.ids(), ["a"])


@session
def a_resumed_session_has_the_ttl_that_was_asked_for(w):
    """a session that is resumed with another TTL has that from then on, with what is in it"""
    s = w.open("x", ttl=60)
    w.registered(s, w.instance("a"), generation=1)
    again = w.open("x", ttl=2)
    same((again.session_id, again.resumed, again.ttl.seconds), (s.session_id, True, 2))
    same(w.ids(), ["a"])
    w.eventually(w.ids, [])


@session
def later_incarnations_have_higher_ranks(w):
    """incarnations are ranked by their first session, the later one higher"""
    first, second = w.open("x"), w.open("y")
    check(second.rank > first.rank, first.rank, second.rank)


@session
def an_incarnation_keeps_its_rank(w):
    """an incarnation keeps its rank for all its sessions"""
    s = w.open("x")
    w.open("y")
    w.close_session(s)
    again = w.open("x")
    check(again.session_id != s.session_id and not again.resumed, again)
    same(again.rank, s.rank, "rank")


@session
def a_renewal_tells_ttl_and_position(w):
    """KeepAlive answers each renewal with the TTL, the epoch and the revision; one stream renews many sessions"""
    first, second = w.open(ttl=30), w.open(ttl=20)
    stream = w.keep_alive()
    for s in (first, second, first):
        answer = stream.renew(s.session_id)
        same((answer.session_id, answer.status.code, answer.ttl.seconds, answer.epoch),
             (s.session_id, 0, s.ttl.seconds, s.epoch))
    revision = w.registered(first, w.instance("a"), generation=1).revision
    check(stream.renew(first.session_id).revision >= revision, "an older revision")


@session
def a_renewal_of_an_unknown_session_is_answered(w):
    """a renewal of an unknown session is answered with SESSION_UNKNOWN, and the stream goes on"""
    s = w.open()
    stream = w.keep_alive()
    same(Refusal(stream.renew("nobody").status).reason, "SESSION_UNKNOWN")
    same(stream.renew(s.session_id).status.code, 0)


@session
def a_session_that_is_not_renewed_ends(w):
    """a session that is not renewed within its TTL ends, and its instances go in one delta"""
    stream = w.subscribe()
    stream.snapshot()
    s = w.open(ttl=1)
    w.registered(s, w.instance("a"), w.instance("b"), generation=1)
    stream.until(["a", "b"])
    delta = stream.message()
    same(sorted(k.instance_id for k in delta.delta.removals), ["a", "b"], "removals")
    same(Refusal(w.keep_alive().renew(s.session_id).status).reason, "SESSION_UNKNOWN")


@session
def a_session_that_is_renewed_lives(w):
    """a session that is renewed outlives its TTL"""
    s = w.open(ttl=1)
    w.registered(s, w.instance("a"), generation=1)
    with Renewing(w, s):
        rival = w.open(ttl=1)
        w.registered(rival, w.instance("b"), generation=1)
        w.eventually(w.ids, ["a"])
        third = w.open(ttl=1)
        w.registered(third, w.instance("c"), generation=1)
        w.eventually(w.ids, ["a"])


@session
def a_closed_session_takes_its_instances_along(w):
    """CloseSession removes what was registered in the session, in one revision"""
    stream = w.subscribe()
    stream.snapshot()
    s = w.open()
    w.registered(s, w.instance("a"), w.instance("b"), generation=1)
    stream.until(["a", "b"])
    w.close_session(s)
    same(sorted(k.instance_id for k in stream.message().delta.removals), ["a", "b"], "removals")
    same(w.ids(), [])


@session
def closing_an_unknown_session_is_ok(w):
    """CloseSession of an unknown session is OK"""
    w.stub.CloseSession(pb.CloseSessionRequest(session_id="nobody"), timeout=TIMEOUT)


@session
def a_closed_incarnation_may_come_back(w):
    """a close leaves no tombstones: the incarnation may register the same again, under the same number"""
    s = w.open("x")
    w.registered(s, w.instance("a"), generation=5)
    w.close_session(s)
    w.registered(w.open("x"), w.instance("a"), generation=5)
    same(w.ids(), ["a"])


@session
def a_persistent_instance_outlives_its_session(w):
    """a persistent instance outlives its session, whether closed or expired"""
    closed, expired = w.open(), w.open(ttl=1)
    w.registered(closed, w.instance("a", persistent=True), w.instance("b"), generation=1)
    w.registered(expired, w.instance("c", persistent=True), w.instance("d"), generation=1)
    for i in ("a", "c"):
        w.defer(lambda i=i: w.unregister(None, w.key(i)))
    w.close_session(closed)
    w.eventually(w.ids, ["a", "c"])


@session
def a_session_may_end_with_its_stream(w):
    """a session opened with `ends_with_stream` ends when the stream that renews it does"""
    s = w.open(ttl=30, ends_with_stream=True)
    w.registered(s, w.instance("a"), generation=1)
    stream = w.keep_alive()
    same(stream.renew(s.session_id).status.code, 0)
    stream.call.cancel()
    w.eventually(w.ids, [])


@session
def a_stream_that_ends_leaves_other_sessions(w):
    """the end of a stream is not the end of a session that was opened without it"""
    s, bound = w.open(ttl=30), w.open(ttl=30, ends_with_stream=True)
    w.registered(s, w.instance("a"), generation=1)
    w.registered(bound, w.instance("b"), generation=1)
    stream = w.keep_alive()
    stream.renew(s.session_id)
    stream.renew(bound.session_id)
    stream.call.cancel()
    w.eventually(w.ids, ["a"])
    same(w.keep_alive().renew(s.session_id).status.code, 0)


@session
def calls_of_an_unknown_session_are_refused(w):
    """Register, Unregister and Subscribe in an unknown session are refused with SESSION_UNKNOWN"""
    gone = w.open()
    w.close_session(gone)
    same(reason_of(lambda: w.register(gone, w.instance("a"), generation=1)), "SESSION_UNKNOWN")
    same(reason_of(lambda: w.unregister(gone, w.key("a"), generation=1)), "SESSION_UNKNOWN")
    same(w.subscribe(session_id=gone.session_id, subscription_id="x").end().reason, "SESSION_UNKNOWN")


@session
def a_detached_instance_lives_without_a_session(w):
    """a call without a session registers an instance without an owner, which stays until it is unregistered"""
    w.registered(None, w.instance("a"))
    same(w.records()["a"].incarnation, "")
    w.unregistered(None, w.key("a"))
    same(w.ids(), [])


# --- Fencing.

fencing = part("Fencing")


@fencing
def a_higher_generation_wins(w):
    """an intent with a higher generation replaces the one before"""
    s = w.open()
    w.registered(s, w.instance("a", 1), generation=1)
    w.registered(s, w.instance("a", 2), generation=2)
    same(w.records()["a"].instance.port, 2)
    w.unregistered(s, w.key("a"), generation=3)
    same(w.ids(), [])


@fencing
def a_lower_generation_is_superseded(w):
    """a lower generation is refused with SUPERSEDED, and the winner's rank and generation"""
    s = w.open()
    w.registered(s, w.instance("a", 2), generation=7)
    for result in (w.register(s, w.instance("a", 1), generation=6).results[0],
                   w.unregister(s, w.key("a"), generation=6).results[0]):
        refusal = Refusal(result.status)
        same((refusal.reason, refusal.metadata.get("rank"), refusal.metadata.get("generation")),
             ("SUPERSEDED", str(s.rank), "7"))
    same(w.records()["a"].instance.port, 2)


@fencing
def the_same_again_changes_nothing(w):
    """the same intent again is accepted and makes no commit"""
    s = w.open()
    w.registered(s, w.instance("a"), generation=1)
    before = w.records()["a"].modify_revision
    w.registered(s, w.instance("a"), generation=1)
    same(w.records()["a"].modify_revision, before, "modify_revision")


@fencing
def a_generation_is_not_used_twice(w):
    """the same generation with another content is refused with GENERATION_REUSED and the number"""
    s = w.open()
    w.registered(s, w.instance("a", 1), generation=4)
    refusal = Refusal(w.register(s, w.instance("a", 2), generation=4).results[0].status)
    same((refusal.reason, refusal.metadata.get("generation")), ("GENERATION_REUSED", "4"))
    same(Refusal(w.unregister(s, w.key("a"), generation=4).results[0].status).reason, "GENERATION_REUSED")


@fencing
def a_late_register_does_not_come_back(w):
    """a register that arrives after a later unregister is refused"""
    s = w.open()
    w.registered(s, w.instance("a"), generation=1)
    w.unregistered(s, w.key("a"), generation=3)
    same(reason_of_item(w.register(s, w.instance("a", 2), generation=2).results[0]), "SUPERSEDED")
    same(w.ids(), [])


@fencing
def an_unregister_of_the_unknown_leaves_a_tombstone(w):
    """an unregister of what is not there is OK, and refuses an earlier register that comes later"""
    s = w.open()
    w.unregistered(s, w.key("a"), generation=2)
    same(reason_of_item(w.register(s, w.instance("a"), generation=1).results[0]), "SUPERSEDED")
    w.registered(s, w.instance("a"), generation=3)
    same(w.ids(), ["a"])


@fencing
def a_later_incarnation_wins(w):
    """a later incarnation takes a key over, whatever the generations"""
    older, later = w.open("x"), w.open("y")
    w.registered(older, w.instance("a", 1), generation=100)
    w.registered(later, w.instance("a", 2), generation=1)
    record = w.records()["a"]
    same((record.instance.port, record.rank), (2, later.rank))


@fencing
def an_older_incarnation_does_not_touch_its_successor(w):
    """an older incarnation neither replaces nor removes what a later one has registered"""
    older, later = w.open("x"), w.open("y")
    w.registered(later, w.instance("a", 2), generation=1)
    for result in (w.register(older, w.instance("a", 1), generation=9).results[0],
                   w.unregister(older, w.key("a"), generation=9).results[0]):
        refusal = Refusal(result.status)
        same((refusal.reason, refusal.metadata.get("rank")), ("SUPERSEDED", str(later.rank)))
    same(w.records()["a"].instance.port, 2)
    w.close_session(older)
    same(w.ids(), ["a"])


@fencing
def an_older_incarnation_may_claim_what_its_successor_has_left(w):
    """when the later incarnation has closed its session, the older one may register the key"""
    older, later = w.open("x"), w.open("y")
    w.registered(later, w.instance("a", 2), generation=1)
    w.close_session(later)
    w.registered(older, w.instance("a", 1), generation=1)
    same(w.records()["a"].instance.port, 1)


@fencing
def expiry_leaves_the_fence(w):
    """what expires of a service that is followed leaves its fence: an older incarnation does not take the key at once"""
    older, later = w.open("x"), w.open("y", ttl=1)
    stream = w.subscribe()
    stream.snapshot()
    w.registered(later, w.instance("a", 2), generation=1)
    stream.until(["a"])
    stream.until([])
    same(reason_of_item(w.register(older, w.instance("a", 1), generation=1).results[0]), "SUPERSEDED")


@fencing
def an_expired_incarnation_registers_again_under_its_number(w):
    """what went with an expired session is applied again, under the same number"""
    s = w.open("x", ttl=1)
    w.registered(s, w.instance("a"), generation=5)
    w.eventually(w.ids, [])
    w.registered(w.open("x"), w.instance("a"), generation=5)
    same(w.ids(), ["a"])


@fencing
def generation_zero_counts_in_order_of_arrival(w):
    """generation 0 is decided in order of arrival"""
    s = w.open()
    w.registered(s, w.instance("a", 1))
    w.registered(s, w.instance("a", 2))
    same(w.records()["a"].instance.port, 2)
    w.unregistered(s, w.key("a"))
    w.registered(s, w.instance("a", 3))
    same(w.records()["a"].instance.port, 3)


@fencing
def a_detached_call_is_another_hand(w):
    """a detached unregister is applied, leaves the owner's fence, and the owner puts its intent back under its number"""
    s = w.open()
    w.registered(s, w.instance("a"), generation=5)
    w.unregistered(None, w.key("a"))
    same(w.ids(), [])
    same(reason_of_item(w.register(s, w.instance("a", 2), generation=4).results[0]), "SUPERSEDED")
    w.registered(s, w.instance("a"), generation=5)
    same(w.ids(), ["a"])


@fencing
def a_batch_is_decided_item_by_item_in_one_revision(w):
    """items of a batch have results of their own, in the order of the request, and one revision"""
    s = w.open()
    w.registered(s, w.instance("b", 1), generation=9)
    response = w.register(s, w.instance("a"), w.instance("b", 2), w.instance("c"), generation=3)
    same([reason_of_item(r) for r in response.results], ["", "SUPERSEDED", ""])
    records = w.records()
    same({records["a"].modify_revision, records["c"].modify_revision}, {response.revision})
    same(records["b"].instance.port, 1)


@fencing
def a_large_batch_is_one_revision(w):
    """300 registrations in one call are one revision"""
    s = w.open()
    w.registered(s, *[w.instance(f"i{n}") for n in range(300)], generation=1)
    same(len({r.modify_revision for r in w.records().values()}), 1, "the number of revisions")


# --- Refusals.

refusal = part("Refusals")


@refusal
def a_bad_field_is_named(w):
    """INVALID_FIELD names the field in a BadRequest, and the value in the message"""
    s = w.open()
    many = {f"k{n}": "" for n in range(65)}
    for field, bad, says in (
            ("registrations[0].instance.port", w.instance("a", 70000), "70000"),
            ("registrations[0].instance.port", w.instance("a", 0), "0"),
            ("registrations[0].instance.weight", w.instance("a", weight=65536), "65536"),
            ("registrations[0].instance.metadata", w.instance("a", metadata=many), "65"),
            ("registrations[0].instance.key.service",
             pb.ServiceInstance(key=pb.InstanceKey(instance_id="a"), address="h", port=1), "required"),
            ("registrations[0].instance.key.instance_id",
             pb.ServiceInstance(key=pb.InstanceKey(service="s", instance_id="a b"), address="h", port=1), "a b"),
            ("registrations[0].instance.key.namespace",
             pb.ServiceInstance(key=pb.InstanceKey(namespace="_", service="s", instance_id="a"),
                                address="h", port=1), "_"),
            ("registrations[0].instance.address",
             pb.ServiceInstance(key=w.key("a"), address="h" * 254, port=1), "254")):
        got = Refusal(w.register(s, bad, generation=1).results[0].status)
        same((got.reason, got.fields[:1]), ("INVALID_FIELD", [field]))
        matches(got.message, says)
    same(w.ids(), [])


@refusal
def a_key_is_in_a_batch_once(w):
    """a key that is in a batch a second time is refused there"""
    response = w.register(w.open(), w.instance("a", 1), w.instance("a", 2), generation=1)
    same([reason_of_item(r) for r in response.results], ["", "INVALID_FIELD"])
    same(w.records()["a"].instance.port, 1)


@refusal
def a_batch_has_a_limit(w):
    """a batch above max_batch is refused with TOO_LARGE, the limit and the actual number"""
    s = w.open()
    most = s.limits.max_batch
    got = refused(lambda: w.register(s, *[w.instance(f"i{n}") for n in range(most + 1)], generation=1))
    same((got.reason, got.metadata.get("limit"), got.metadata.get("actual")),
         ("TOO_LARGE", str(most), str(most + 1)))


@refusal
def what_is_not_there_is_not_found(w):
    """SetOffline of an unknown instance is NOT_FOUND, with that reason"""
    for is_offline in (True, False):
        got = refused(lambda: set_offline(w, "a", is_offline))
        same((got.code, got.reason), (grpc.StatusCode.NOT_FOUND.value[0], "NOT_FOUND"))


@refusal
def a_stream_of_registers_is_answered_in_order(w):
    """RegisterStream answers each message in the order of the requests, refusals within, and goes on"""
    s = w.open()

    def message(generation, *instances):
        return pb.RegisterRequest(
            session_id=s.session_id, wait_for=pb.INTENT_STATE_ACKNOWLEDGED,
            registrations=[pb.Registration(instance=i, generation=generation) for i in instances])

    answers = list(w.stub.RegisterStream(iter([
        message(2, w.instance("a"), w.instance("b")),
        message(1, w.instance("c", 70000)),
        message(1, w.instance("a", 2), w.instance("d")),
        pb.RegisterRequest(session_id="nobody",
                           registrations=[pb.Registration(instance=w.instance("e"))])]), timeout=TIMEOUT))
    same([Refusal(a.status).reason for a in answers], ["", "", "", "SESSION_UNKNOWN"])
    check(all(not r.status.code for r in answers[0].results), answers[0])
    same(Refusal(answers[1].results[0].status).fields, ["registrations[0].instance.port"])
    same(set(w.ids()), {"a", "b", "d"})


@refusal
def limits_are_refused_without_a_delay(w):
    """beyond the limits on instances, instances of a session, and sessions: LIMIT_REACHED, and no RetryInfo"""
    for option, fill in (("--limits-max-instances", lambda v, s: v.register(s, v.instance("b"))),
                         ("--limits-max-instances-per-session", lambda v, s: v.register(s, v.instance("b"))),
                         ("--limits-max-sessions", lambda v, s: v.open())):
        daemon = w.subject.own(option, "1")
        v = World(w.subject, [daemon.address])
        try:
            s = v.open()
            v.registered(s, v.instance("a"))
            try:
                answer = fill(v, s)
                got = Refusal(answer.results[0].status) if hasattr(answer, "results") else answer
            except grpc.RpcError as error:
                got = Refusal.of(error)
            check(isinstance(got, Refusal), option, "is not refused")
            same((got.reason, got.delay), ("LIMIT_REACHED", None), option)
        finally:
            v.close()


# --- Subscriptions.

subscription = part("Subscriptions")


@subscription
def first_comes_a_snapshot(w):
    """the first message is a snapshot, empty if there is nothing"""
    same([len(p.snapshot.instances) for p in w.subscribe().snapshot()], [0])
    w.registered(w.open(), w.instance("a"), generation=1)
    stream = w.subscribe()
    stream.snapshot()
    stream.until(["a"])


@subscription
def then_come_deltas_each_from_the_one_before(w):
    """changes are deltas whose base is the revision of the message before, in order"""
    stream = w.subscribe()
    stream.snapshot()
    s = w.open()
    ports = []
    for n in range(1, 4):
        w.registered(s, w.instance("a", n), generation=n)
        ports.append(stream.message().delta.upserts[0].port)
    same(ports, [1, 2, 3])
    w.unregistered(s, w.key("a"), generation=9)
    same([k.instance_id for k in stream.message().delta.removals], ["a"])


@subscription
def a_batch_is_told_at_once(w):
    """the changes of one commit are one delta"""
    stream = w.subscribe()
    stream.snapshot()
    w.registered(w.open(), w.instance("a"), w.instance("b"), w.instance("c"), generation=1)
    same(sorted(i.key.instance_id for i in stream.message().delta.upserts), ["a", "b", "c"])


@subscription
def what_changes_nothing_is_not_told(w):
    """a commit that changes nothing that is seen makes no event"""
    stream = w.subscribe()
    stream.snapshot()
    s = w.open()
    w.registered(s, w.instance("a"), generation=1)
    stream.until(["a"])
    w.registered(s, w.instance("a"), generation=2)
    w.registered(s, w.instance("x", service="other"), generation=1)
    w.registered(s, w.instance("b"), generation=1)
    same([i.key.instance_id for i in stream.message().delta.upserts], ["b"])


@subscription
def who_comes_back_goes_on_with_one_delta(w):
    """from a known position a stream goes on with one delta"""
    s = w.open()
    w.registered(s, w.instance("a", 1), w.instance("b"), generation=1)
    before = w.subscribe()
    before.until(["a", "b"])
    other = w.subscribe()  # goes on following the service
    other.until(["a", "b"])
    before.cancel()
    w.registered(s, w.instance("a", 2), w.instance("c"), generation=2)
    w.unregistered(s, w.key("b"), generation=2)
    other.until(["a", "c"])
    stream = w.subscribe(epoch=before.epoch, revision=before.revision)
    stream.set, stream.epoch, stream.revision = dict(before.set), before.epoch, before.revision
    message = stream.message()
    check(message.HasField("delta"), "no delta:", message)
    same((sorted(stream.set), stream.set["a"].port), (["a", "c"], 2))


@subscription
def a_position_is_confirmed(w):
    """who comes back and has missed nothing gets an empty delta"""
    w.registered(w.open(), w.instance("a"), generation=1)
    before = w.subscribe()
    before.until(["a"])
    stream = w.subscribe(epoch=before.epoch, revision=before.revision)
    stream.epoch, stream.revision = before.epoch, before.revision
    message = stream.message()
    check(message.HasField("delta") and not message.delta.upserts and not message.delta.removals, message)


@subscription
def an_unknown_position_gets_a_snapshot(w):
    """another epoch, or a revision that is still to come, gets a snapshot"""
    w.registered(w.open(), w.instance("a"), generation=1)
    first = w.subscribe()
    first.snapshot()
    for epoch, revision in ((first.epoch + 1, first.revision), (first.epoch, first.revision + 1000000)):
        stream = w.subscribe(epoch=epoch, revision=revision)
        stream.snapshot()
        same((list(stream.set), stream.epoch), (["a"], first.epoch))


@subscription
def a_position_holds_at_every_server(w):
    """a position from one server goes on at another with one delta"""
    s = w.open()
    w.registered(s, w.instance("a"), generation=1)
    before = w.subscribe()
    before.until(["a"])
    w.registered(s, w.instance("b"), generation=1)
    # The other server follows the service already, as one does that serves others.
    w.subscribe(stub=w.other).until(["a", "b"])
    stream = w.subscribe(stub=w.other, epoch=before.epoch, revision=before.revision)
    stream.set, stream.epoch, stream.revision = dict(before.set), before.epoch, before.revision
    message = stream.message()
    check(message.HasField("delta"), "no delta:", message)
    same(sorted(stream.set), ["a", "b"])


@subscription
def a_position_is_taken_where_the_service_is_new(w):
    """a position goes on with one delta at a server where nobody has followed the service before"""
    s = w.open()
    w.registered(s, w.instance("a", 1), w.instance("b"), generation=1)
    before = w.subscribe()
    before.until(["a", "b"])
    known, epoch, revision = dict(before.set), before.epoch, before.revision
    w.registered(s, w.instance("a", 2), w.instance("c"), generation=2)
    w.unregistered(s, w.key("b"), generation=2)
    before.until(["a", "c"])  # over etcd a write is answered before it is seen
    stream = w.subscribe(stub=w.other, epoch=epoch, revision=revision)
    stream.set, stream.epoch, stream.revision = known, epoch, revision
    message = stream.message()
    check(message.HasField("delta"), "no delta:", message)
    same((sorted(stream.set), stream.set["a"].port), (["a", "c"], 2))
    w.registered(s, w.instance("d"), generation=3)
    stream.until(["a", "c", "d"])


@subscription
def every_server_tells_the_same(w):
    """what is registered at one server is reported and listed by another"""
    stream = w.subscribe(stub=w.other)
    stream.snapshot()
    s = w.open()
    w.registered(s, w.instance("a"), generation=1)
    stream.until(["a"])
    same(w.ids(stub=w.other), ["a"])
    w.unregistered(s, w.key("a"), generation=2, stub=w.other)
    stream.until([])
    same(w.ids(), [])


@subscription
def conditions_select_instances(w):
    """states, zones and metadata select; what comes to match appears, what no longer does goes"""
    s = w.open()
    w.registered(s, w.instance("a", zone="z1", metadata={"k": "v"}),
                 w.instance("b", zone="z2", metadata={"k": "v"}),
                 w.instance("c", zone="z1", metadata={"k": "w"}),
                 w.instance("d", zone="z1", metadata={"k": "v"}, status=UNHEALTHY), generation=1)
    selector = w.selector(zones=["z1"], metadata={"k": "v"}, statuses=[pb.HEALTH_STATUS_HEALTHY])
    stream = w.subscribe(selector)
    stream.snapshot()
    same(list(stream.set), ["a"])
    same(w.ids(zones=["z1"], metadata={"k": "v"}, statuses=[pb.HEALTH_STATUS_HEALTHY]), ["a"])
    w.registered(s, w.instance("d", zone="z1", metadata={"k": "v"}), generation=2)
    stream.until(["a", "d"])
    w.registered(s, w.instance("a", zone="z1", metadata={"k": "v"}, status=DRAINING), generation=2)
    stream.until(["d"])


@subscription
def the_services_of_a_namespace_are_followed(w):
    """without a service the services of the namespace are followed, each with its number of instances"""
    space = w.name
    stream = w.subscribe(pb.Selector(namespace=space))
    stream.snapshot()
    s = w.open()
    w.registered(s, w.instance("a", namespace=space), w.instance("b", namespace=space),
                 w.instance("a", service="t", namespace=space), generation=1)
    while {n: e.instance_count for n, e in stream.set.items()} != {f"{w.name}-s": 2, f"{w.name}-t": 1}:
        stream.message()
    w.unregistered(s, w.key("a", service="t", namespace=space), w.key("a", namespace=space), generation=2)
    while {n: e.instance_count for n, e in stream.set.items()} != {f"{w.name}-s": 1}:
        stream.message()


@subscription
def services_are_followed_without_conditions(w):
    """conditions on instances are refused where services are followed"""
    end = w.subscribe(pb.Selector(namespace=w.name, zones=["z"])).end()
    same(end.reason, "INVALID_FIELD")


@subscription
def a_newer_subscribe_of_the_name_takes_over(w):
    """a second Subscribe of the same name ends the first with REPLACED"""
    s = w.open()
    first = w.subscribe(session_id=s.session_id, subscription_id="x")
    first.snapshot()
    second = w.subscribe(session_id=s.session_id, subscription_id="x")
    second.snapshot()
    same(first.end().reason, "REPLACED")


@subscription
def an_unsubscribe_ends_the_stream(w):
    """Unsubscribe ends the stream with OK; one of an unknown name or session is OK too"""
    s = w.open()
    stream = w.subscribe(session_id=s.session_id, subscription_id="x", generation=1)
    stream.snapshot()
    w.stub.Unsubscribe(pb.UnsubscribeRequest(session_id=s.session_id, subscription_id="x", generation=2),
                       timeout=TIMEOUT)
    same(stream.end(), None)
    for session_id in (s.session_id, "nobody"):
        w.stub.Unsubscribe(pb.UnsubscribeRequest(session_id=session_id, subscription_id="y"), timeout=TIMEOUT)


@subscription
def a_late_subscribe_does_not_come_back(w):
    """a Subscribe whose generation is not above that of the Unsubscribe is refused; so is a lower Unsubscribe"""
    s = w.open()
    w.stub.Unsubscribe(pb.UnsubscribeRequest(session_id=s.session_id, subscription_id="x", generation=2),
                       timeout=TIMEOUT)
    same(w.subscribe(session_id=s.session_id, subscription_id="x", generation=2).end().reason, "SUPERSEDED")
    w.subscribe(session_id=s.session_id, subscription_id="x", generation=3).snapshot()
    same(reason_of(lambda: w.stub.Unsubscribe(
        pb.UnsubscribeRequest(session_id=s.session_id, subscription_id="x", generation=2),
        timeout=TIMEOUT)), "SUPERSEDED")


@subscription
def a_subscription_ends_with_its_session(w):
    """a subscription in a session ends with it"""
    s = w.open()
    stream = w.subscribe(session_id=s.session_id, subscription_id="x")
    stream.snapshot()
    w.close_session(s)
    same(stream.end().reason, "SESSION_UNKNOWN")


@subscription
def a_large_set_comes_in_parts(w):
    """a snapshot above any client's limit comes in parts of one revision"""
    s = w.open()
    pad = {f"k{n}": "x" * 1000 for n in range(8)}
    for begin in range(0, 800, 200):
        w.registered(s, *[w.instance(f"i{n}", metadata=pad) for n in range(begin, begin + 200)], generation=1)
    stream = w.subscribe()
    parts = stream.snapshot()
    check(len(parts) > 1, "one part")
    same(len({p.revision for p in parts}), 1, "the number of revisions")
    same(len(stream.set), 800)


@subscription
def a_large_change_can_be_read(w):
    """what changed while nobody read can be read by a client with the usual limit of 4 MB"""
    s = w.open()
    before = w.subscribe()
    before.snapshot()
    before.cancel()
    pad = {f"k{n}": "x" * 1000 for n in range(8)}
    for begin in range(0, 800, 200):
        w.registered(s, *[w.instance(f"i{n}", metadata=pad) for n in range(begin, begin + 200)], generation=1)
    seen, epoch, revision = {}, before.epoch, before.revision
    while len(seen) < 800:
        stream = w.subscribe(epoch=epoch, revision=revision)
        stream.set, stream.epoch, stream.revision = seen, epoch, revision
        ended = None
        while ended is None and len(stream.set) < 800:
            ended = stream.message_or_end()
        # Who falls behind while it reads starts again from where it is.
        check(ended is None or ended.reason == "SUBSCRIBER_SLOW", ended)
        seen, epoch, revision = stream.set, stream.epoch, stream.revision


# --- Out of rotation.

offline = part("Out of rotation")


def set_offline(w, instance_id, is_offline, **fields):
    return w.admin.SetOffline(offline_pb2.SetOfflineRequest(key=w.key(instance_id), offline=is_offline, **fields),
                              timeout=TIMEOUT)


@offline
def a_mark_is_told_and_taken_back(w):
    """an operator's mark is reported to subscribers and listed, and taken back"""
    s = w.open()
    w.registered(s, w.instance("a"), generation=1)
    stream = w.subscribe()
    stream.snapshot()
    set_offline(w, "a", True, reason="broken", by="me")
    mark = stream.message().delta.upserts[0].offline
    same(mark.reason, "broken")
    check(w.records()["a"].instance.HasField("offline"), "not listed")
    set_offline(w, "a", False)
    check(not stream.message().delta.upserts[0].HasField("offline"), "still marked")


@offline
def a_mark_outlives_an_update(w):
    """a mark stays through updates of the owner, who does not set it, and ends with an unregister"""
    s = w.open()
    w.registered(s, w.instance("a", 1), generation=1)
    set_offline(w, "a", True)
    w.registered(s, w.instance("a", 2), generation=2)
    record = w.records()["a"].instance
    check(record.port == 2 and record.HasField("offline"), record)
    w.unregistered(s, w.key("a"), generation=3)
    w.registered(s, w.instance("a", 3), generation=4)
    check(not w.records()["a"].instance.HasField("offline"), "marked")
    w.registered(s, w.instance("b", offline=pb.OfflineMark(reason="no")), generation=1)
    check(not w.records()["b"].instance.HasField("offline"), "marked by its owner")


# --- Listing.

listing = part("Listing")


@listing
def pages_add_up_in_the_order_of_keys(w):
    """pages hold at most what was asked for, sorted by key, and add up to all"""
    w.registered(w.open(), *[w.instance(f"i{n:02}") for n in range(25)], generation=1)
    ids, token = [], ""
    while True:
        page = w.page(selector=w.selector(), page_size=10, page_token=token)
        check(len(page.records) <= 10, len(page.records))
        ids += [r.instance.key.instance_id for r in page.records]
        token = page.next_page_token
        if not token:
            break
    same(ids, [f"i{n:02}" for n in range(25)])


@listing
def a_page_can_be_read(w):
    """a page is at most about 2 MiB"""
    s = w.open()
    pad = {f"k{n}": "x" * 1000 for n in range(8)}
    for begin in range(0, 400, 200):
        w.registered(s, *[w.instance(f"i{n}", metadata=pad) for n in range(begin, begin + 200)], generation=1)
    page = w.page(selector=w.selector())
    check(page.ByteSize() < 3 << 20, page.ByteSize())
    same(len(w.ids()), 400)


@listing
def a_record_says_whose_it_is(w):
    """a record has the incarnation, rank, generation, client name, revisions and times"""
    s = w.open("x", client_name="somebody's")
    first = w.registered(s, w.instance("a", 1), generation=3)
    second = w.registered(s, w.instance("a", 2), generation=4)
    record = w.records()["a"]
    same((record.incarnation, record.rank, record.generation, record.client_name),
         (f"{w.name}-x", s.rank, 4, "somebody's"))
    same((record.create_revision, record.modify_revision), (first.revision, second.revision))
    check(record.create_time.seconds and record.modify_time.seconds, record)


@listing
def an_incarnation_is_listed_over_namespaces(w):
    """without a selector what an incarnation registered is listed, in all namespaces"""
    s, other = w.open("x"), w.open("y")
    w.registered(s, w.instance("a"), w.instance("b", namespace=f"{w.name}n"), generation=1)
    w.registered(other, w.instance("c"), generation=1)
    page = w.page(incarnation=f"{w.name}-x")
    same(sorted(r.instance.key.instance_id for r in page.records), ["a", "b"])


@listing
def namespaces_are_apart(w):
    """the same service in two namespaces is two; an empty namespace is `default`, which answers write out"""
    s = w.open()
    w.registered(s, w.instance("a"), w.instance("b", namespace=f"{w.name}n"), generation=1)
    record = w.records()["a"]
    same(record.instance.key.namespace, "default")
    same(w.ids(namespace=f"{w.name}n"), ["b"])


@listing
def a_scope_narrows_a_listing(w):
    """with scopes what is in a service that one of them does not show is left out, on all pages"""
    ns = f"{w.name}n"
    w.registered(w.open(), *[w.instance(i, service=s, namespace=ns)
                             for s in ("a", "a-1", "a/2", "b", "c") for i in ("x", "y")], generation=1)

    def scope(*services):
        return pb.ListScope(grants=[pb.ListScope.Grant(
            namespaces=[ns], services=[f"{w.name}-{s}" for s in services])])

    def listed(size, *scopes):
        services, token = [], ""
        while True:
            page = w.page(selector=pb.Selector(namespace=ns), page_size=size, page_token=token, scopes=scopes)
            services += [r.instance.key.service[len(w.name) + 1:] for r in page.records]
            token = page.next_page_token
            if not token:
                return sorted(services)

    for size in (1, 3, 0):
        same(listed(size, scope("a*", "c")), sorted(2 * ["a", "a-1", "a/2", "c"]))
        same(listed(size, scope("a*", "c"), scope("a/*", "b", "c")), sorted(2 * ["a/2", "c"]))
        same(listed(size, scope()), [])


@listing
def a_token_that_is_none_is_refused(w):
    """a page token that no answer had is refused and named"""
    got = refused(lambda: w.page(selector=w.selector(), page_token="garbage"))
    same((got.reason, got.fields[:1]), ("INVALID_FIELD", ["page_token"]))


# --- Life.

life = part("Life")


def own_world(w):
    daemon = w.subject.own()
    v = World(w.subject, [daemon.address])
    w.defer(v.close)
    return daemon, v


def killed_and_started(w, daemon, v):
    """The world of the same names at the daemon, which is killed and started."""
    daemon.stop(signal.SIGKILL)
    daemon.start()
    again = World(w.subject, [daemon.address])
    w.defer(again.close)
    again.name = v.name
    return again


@life
def a_restart_keeps_what_was_acknowledged(w):
    """after a SIGKILL and a start: the same epoch, session and instances"""
    daemon, v = own_world(w)
    s = v.open("x")
    v.registered(s, v.instance("a"), generation=1)
    v = killed_and_started(w, daemon, v)
    again = v.stub.OpenSession(pb.OpenSessionRequest(
        incarnation=f"{v.name}-x", ttl=duration_pb2.Duration(seconds=30)), timeout=TIMEOUT, wait_for_ready=True)
    same((again.session_id, again.resumed, again.epoch, again.rank),
         (s.session_id, True, s.epoch, s.rank))
    same(v.ids(), ["a"])


@life
def a_position_survives_a_restart(w):
    """after a SIGKILL and a start a subscriber goes on from its position"""
    daemon, v = own_world(w)
    v.registered(v.open("x"), v.instance("a"), generation=1)
    before = v.subscribe()
    before.until(["a"])
    v = killed_and_started(w, daemon, v)
    v.registered(v.open("y"), v.instance("b"), generation=1)
    stream = v.subscribe(epoch=before.epoch, revision=before.revision)
    stream.set, stream.epoch, stream.revision = dict(before.set), before.epoch, before.revision
    message = stream.message()
    check(message.HasField("delta"), "no delta:", message)


@life
def a_stop_is_told(w):
    """SIGTERM ends streams with SHUTTING_DOWN"""
    daemon, v = own_world(w)
    stream = v.subscribe()
    stream.snapshot()
    daemon.stop(signal.SIGTERM)
    same(stream.end().reason, "SHUTTING_DOWN")


@life
def health_is_served(w):
    """grpc.health.v1 answers SERVING"""
    check_health = w.channel.unary_unary("/grpc.health.v1.Health/Check")
    same(check_health(b"", timeout=TIMEOUT), b"\x08\x01")
