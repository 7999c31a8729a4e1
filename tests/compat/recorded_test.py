"""recorded_test.py SCENE...: today's programs open what each released version has stored, and answer as it did."""

import json
import os
import sys
import tempfile
import time

from calls import Messages, Replayer, Targets
from programs import Failed, Programs, Stage
from scenes import SCENES

DATA = "tests/compat/data"


def replay(scene, programs, folder, work):
    with open(os.path.join(folder, "protos.binpb"), "rb") as file:
        messages = Messages(file.read())
    with open(os.path.join(folder, scene.name, "calls.json"), encoding="utf-8") as file:
        recorded = json.load(file)
    with Stage(work) as stage:
        targets = Targets(scene.start(stage, programs, os.path.join(folder, scene.name)))
        try:
            Replayer(messages, targets, recorded["fixed"], scene.free).play(recorded["steps"])
        finally:
            targets.close()
    return len(recorded["steps"])


def main():
    scenes = {scene.name: scene for scene in SCENES}
    programs = Programs("today's", os.environ.get("FAILBACK_COMPAT_BIN", "."))
    failures = 0
    for version in sorted(os.listdir(DATA)):
        for name in sys.argv[1:]:
            started = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="failback-recorded-") as work:
                try:
                    steps = replay(scenes[name], programs, os.path.join(DATA, version), os.path.join(work, "stage"))
                    print(f"{version} {name}: {steps} steps, in {time.monotonic() - started:.1f} s")
                except Failed as failed:
                    failures += 1
                    print(f"{version} {name}: FAILED {failed}")
    return 1 if failures or not os.listdir(DATA) else 0


if __name__ == "__main__":
    sys.exit(main())
