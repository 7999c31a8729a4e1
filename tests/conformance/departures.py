"""Where a subject departs from a clause: why, and how the clause fails there. A departure that no longer is
one fails the suite, as does a clause that fails otherwise."""

_ETCD = {
    "a-large-batch-is-one-revision": (
        "a transaction of etcd has 128 operations at most (`--max-txn-ops`)", r"number of revisions is"),
}

_AGENT_NUMBERS = "an agent numbers what it carries itself: its session at the registry is the agent's"
_AGENT_RANK = "clients of one agent have no ranks: the last intent counts"
_AGENT_SETS = "an agent keeps the newest set of what it follows, and not how it came to be: a snapshot"

DEPARTURES = {
    "memory": {
        "a-restart-keeps-what-was-acknowledged": ("nothing survives the process", r"False"),
        "a-position-survives-a-restart": ("nothing survives the process", r"no delta"),
    },
    "sqlite": {},
    "etcd": _ETCD,
    "etcd-two": _ETCD,
    "agent": {
        "a-session-tells-what-a-client-needs": (
            "an agent takes requests of any size that its registry takes: `max_request_bytes` is unset",
            r"max_batch"),
        "an-incarnation-keeps-its-rank": (_AGENT_RANK, r"rank is"),
        "a-detached-instance-lives-without-a-session": (
            "an agent carries it in its own session", r"not ''"),
        "a-later-incarnation-wins": (_AGENT_RANK, r"is \(2, "),
        "an-older-incarnation-does-not-touch-its-successor": (_AGENT_RANK, r"is \('', None\)"),
        "expiry-leaves-the-fence": (_AGENT_RANK, r"is '', not 'SUPERSEDED'"),
        "a-detached-call-is-another-hand": (
            "a detached call at an agent is the last intent, like any other", r"is '', not 'SUPERSEDED'"),
        "a-batch-is-decided-item-by-item-in-one-revision": (
            "an answer has no revision: the agent's commits at the registry are its own", r"not \{0\}"),
        "a-large-batch-is-one-revision": (
            "an agent sends 250 registrations at a time", r"number of revisions is"),
        "limits-are-refused-without-a-delay": (
            "sessions of an agent are its own, one at the registry", r"is not refused"),
        "who-comes-back-goes-on-with-one-delta": (_AGENT_SETS, r"no delta"),
        "a-position-holds-at-every-server": (_AGENT_SETS, r"no delta"),
        "a-position-is-taken-where-the-service-is-new": (_AGENT_SETS, r"no delta"),
        "a-position-survives-a-restart": ("without a state directory nothing survives the process", r"no delta"),
        "a-record-says-whose-it-is": (_AGENT_NUMBERS, r"failback-agent@"),
        "a-restart-keeps-what-was-acknowledged": (
            "without a state directory nothing survives the process", r"False"),
    },
}
