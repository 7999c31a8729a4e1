"""Options of the compiler that some targets have."""

# For what tests run a million times on simulated time. Without any optimisation it takes them six times as
# long; with a little the compiler takes a fifth longer. Nothing else than a fastbuild is different by it.
OPTIMISED_A_LITTLE = select({
    "//:fastbuild": ["-O1"],
    "//conditions:default": [],
})
