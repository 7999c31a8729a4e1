#!/usr/bin/env bash
# Twenty seconds of the soak; FAILBACK_TEST_SEED replays one.
exec tests/soak/soak --seconds 20 --seed "${FAILBACK_TEST_SEED:-$RANDOM$RANDOM}"
