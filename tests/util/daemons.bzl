"""The binaries that tests/util/daemons.h starts, for the `data` of a test."""

DAEMONS = [
    "//agent:failback-agent",
    "//agent:failbackctl",
    "//registry:failback-registry",
]
