"""Options of the compiler that some targets have."""

# For what tests run a million times on simulated time: 400 seeds of the failback core's model take 1.2 s of
# CPU with it, and 6.1 s without any optimisation. Nothing else than a fastbuild is different by it.
OPTIMISED_A_LITTLE = select({
    "//:fastbuild": ["-O1"],
    "//conditions:default": [],
})

# Linked into one piece such a program plays a twelfth more in the same time.
STATIC_WHEN_OPTIMISED = select({
    "//:opt": ["-static"],
    "//conditions:default": [],
})
