"""record.py --bin DIR OUT: records what the programs in DIR store and say, as scenes.py tells, in the folder OUT. It is
taken when the same programs have repeated it several times."""

import argparse
import json
import os
import shutil
import sys
import tempfile

from calls import Messages, descriptors
from failback.admin.v1 import admin_pb2, offline_pb2
from failback.agent.v1 import agent_pb2
from failback.registry.v1 import registry_pb2
from failback.rpc.v1 import status_pb2
from flags import flags_of
from programs import Failed, Programs, Stage
from recorded_test import replay
from scenes import SCENES, recording

REPEATED = 5


def record(scene, programs, messages, work, out):
    folder = os.path.join(out, scene.name)
    os.makedirs(folder)
    with Stage(os.path.join(work, scene.name, "made")) as stage:
        fixed = scene.make(stage, programs, messages, folder)
    with Stage(os.path.join(work, scene.name, "played")) as stage:
        with recording(messages, scene.start(stage, programs, folder), fixed) as recorder:
            scene.play(recorder)
    with open(os.path.join(folder, "calls.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps({"fixed": fixed, "steps": recorder.steps}, indent=1) + "\n")
    print(f"{scene.name}: {len(recorder.steps)} steps")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="folder of the programs")
    parser.add_argument("out", metavar="OUT", help="folder of the version's data, which is made again")
    args = parser.parse_args()
    programs = Programs("recorded", args.bin)
    messages = Messages(descriptors([registry_pb2, agent_pb2, admin_pb2, offline_pb2, status_pb2]))
    work = tempfile.mkdtemp(prefix="failback-record-")
    fresh = os.path.join(work, "recorded")
    os.makedirs(fresh)
    with open(os.path.join(fresh, "protos.binpb"), "wb") as file:
        file.write(messages.files.SerializeToString(deterministic=True))
    with open(os.path.join(fresh, "flags.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(flags_of(programs), indent=1) + "\n")
    try:
        for scene in SCENES:
            record(scene, programs, messages, work, fresh)
        for scene in SCENES * REPEATED:
            with tempfile.TemporaryDirectory(dir=work) as again:
                replay(scene, programs, fresh, os.path.join(again, "stage"))
    except Failed as failed:
        print(f"record: {failed}; see {work}", file=sys.stderr)
        raise
    shutil.rmtree(args.out, ignore_errors=True)
    shutil.move(fresh, args.out)
    shutil.rmtree(work)
    size = sum(os.path.getsize(os.path.join(path, file)) for path, _, files in os.walk(args.out) for file in files)
    print(f"{args.out}: version {programs.version()}, {size} bytes")


if __name__ == "__main__":
    main()
