"""What a sidecar costs while nothing happens: memory, CPU and wake-ups of the process, as Linux counts
them, over a window of time after everything is registered."""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import tempfile
import time

AIM_RESIDENT_MB = 25.0
AIM_CPU_PERCENT = 0.1


def status_fields(path):
    fields = {}
    with open(path, encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            fields[name] = value.split()
    return fields


class Sample:
    """The counters of a process at one moment."""

    def __init__(self, pid):
        self.time = time.monotonic()
        with open("/proc/%d/stat" % pid, encoding="ascii") as file:
            after_name = file.read().rpartition(")")[2].split()
        self.cpu = (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
        # Finer than ticks: the scheduler's own count, in ns.
        self.run = 0
        self.switches = 0
        for task in os.listdir("/proc/%d/task" % pid):
            fields = status_fields("/proc/%d/task/%s/status" % (pid, task))
            # A wake-up is a return from a wait that the thread went into by itself.
            self.switches += int(fields["voluntary_ctxt_switches"][0])
            with open("/proc/%d/task/%s/schedstat" % (pid, task), encoding="ascii") as file:
                self.run += int(file.read().split()[0])
        memory = status_fields("/proc/%d/smaps_rollup" % pid)
        self.resident = int(memory["Rss"][0]) / 1024
        self.own = (int(memory["Private_Dirty"][0]) + int(memory["Private_Clean"][0])) / 1024
        self.threads = len(os.listdir("/proc/%d/task" % pid))


def configuration(folder, count, checks, port):
    path = os.path.join(folder, "agent.yaml")
    with open(path, "w", encoding="ascii") as file:
        file.write("services:\n")
        for i in range(count):
            check = ", checks: [{tcp: {address: '127.0.0.1:%d'}}]" % port if checks else ""
            file.write("- {name: orders-%d, id: i%d, address: 10.0.0.1, port: 80, zone: eu-1a, "
                       "metadata: {version: '1.10'}%s}\n" % (i % 100, i, check))
    return path


def wait_for_line(process, text):
    for line in process.stdout:
        if text in line:
            return line
    raise SystemExit("a daemon ended: " + text)


def measure(folder, count, checks, window, rounds):
    binaries = "bazel-bin"
    registry = subprocess.Popen(
        [binaries + "/registry/failback-registry", "--listen", "127.0.0.1:0", "--store", "memory:"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    agent = None
    try:
        line = wait_for_line(registry, "listening on ")
        address = line.split("listening on ")[1].split(",")[0].strip()
        socket = "unix:%s/agent.sock" % folder
        agent = subprocess.Popen(
            [binaries + "/agent/failback-agent", "--registry", "grpc://" + address, "--listen", socket,
             "--log-level", "warning",
             "--config", configuration(folder, count, checks, int(address.split(":")[1]))],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        wait_for_line(agent, "listening on ")
        deadline = time.monotonic() + 120
        while True:
            out = subprocess.run([binaries + "/agent/failbackctl", "--target", socket, "status", "-o",
                                  "json"], capture_output=True, text=True, check=True).stdout
            upstream = json.loads(out)["upstreams"][0]
            if int(upstream.get("acknowledged", 0)) == count:
                break
            if time.monotonic() > deadline:
                raise SystemExit("not registered in time: " + out)
            time.sleep(0.1)
        time.sleep(5)  # what the start has left to do
        samples = [Sample(agent.pid)]
        for _ in range(rounds):
            time.sleep(window)
            samples.append(Sample(agent.pid))
        pairs = list(zip(samples, samples[1:]))
        return {
            "resident": ("MB", statistics.median(s.resident for s in samples)),
            "private": ("MB", statistics.median(s.own for s in samples)),
            "threads": ("count", float(samples[-1].threads)),
            "cpu": ("% of a core", statistics.median(
                (b.run - a.run) / 1e9 / (b.time - a.time) * 100 for a, b in pairs)),
            "wake-ups": ("per second", statistics.median(
                (b.switches - a.switches) / (b.time - a.time) for a, b in pairs)),
        }
    finally:
        for process in (agent, registry):
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--registrations", default="10,10000")
    parser.add_argument("--window", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.quick:
        args.window, args.rounds = 1.0, 1
    cases = [(int(count), False) for count in args.registrations.split(",")] + [(10, True)]
    print("machine: %s, %d CPUs, load %.1f; %d rounds of %g s, medians" % (
        platform.machine(), os.cpu_count(), os.getloadavg()[0], args.rounds, args.window))
    out = open(args.json, "w", encoding="utf-8") if args.json else None
    within = True
    for count, checks in cases:
        with tempfile.TemporaryDirectory(prefix="fb-") as folder:
            figures = measure(folder, count, checks, args.window, args.rounds)
        workload = "at rest, %d services%s" % (count, " with TCP checks" if checks else "")
        print("%-40s %s" % (workload, ", ".join(
            "%s %.3g %s" % (name, value, unit) for name, (unit, value) in figures.items())))
        if out:
            for name, (unit, value) in figures.items():
                out.write(json.dumps({"workload": workload, "subject": "failback-agent",
                                      "metric": name, "value": value, "unit": unit}) + "\n")
        if count == 10 and not checks:
            within = (figures["resident"][1] < AIM_RESIDENT_MB and
                      figures["cpu"][1] < AIM_CPU_PERCENT)
    print("aim with ten services: under %g MB resident and %g %% of a core: %s" % (
        AIM_RESIDENT_MB, AIM_CPU_PERCENT, "held" if within else "missed"))


if __name__ == "__main__":
    main()
