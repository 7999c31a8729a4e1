"""What a sidecar costs: memory, CPU and wake-ups of the process, as Linux counts them. At rest, over a
window of time after everything is registered; with many registrations, from its clients or from its
file; and in an outage, with a console open."""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

BINARIES = "bazel-bin"
DEADLINE = 120


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


def most_resident(pid):
    return int(status_fields("/proc/%d/status" % pid)["VmHWM"][0]) / 1024


def wait_for_line(process, text):
    for line in process.stdout:
        if text in line:
            return line
    raise SystemExit("a daemon ended: " + text)


class Daemons:
    """A registry and a sidecar in front of it."""

    def __init__(self, folder, lines=()):
        self.folder = folder
        self.processes = []
        self.registry, line = self.start(
            ["registry/failback-registry", "--listen", "127.0.0.1:0", "--store", "memory:"])
        self.upstream = line.split("listening on ")[1].split(",")[0].strip()
        path = os.path.join(folder, "agent.yaml")
        with open(path, "w", encoding="ascii") as file:
            file.write("services:\n")
            for text in lines:
                file.write(text.replace("PORT", self.upstream.split(":")[1]))
        self.socket = "unix:%s/agent.sock" % folder
        began = time.monotonic()
        self.agent, line = self.start(
            ["agent/failback-agent", "--registry", "grpc://" + self.upstream, "--listen", self.socket,
             "--admin", "127.0.0.1:0", "--log-level", "warning", "--config", path])
        self.seconds_to_start = time.monotonic() - began
        self.console = line.split("admin http://")[1].split(",")[0].strip()

    def start(self, command):
        process = subprocess.Popen([os.path.join(BINARIES, command[0])] + command[1:],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.processes.append(process)
        return process, wait_for_line(process, "listening on ")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def ctl(self, *arguments):
        return subprocess.run([BINARIES + "/agent/failbackctl", "--target", self.socket, *arguments],
                              capture_output=True, text=True, check=True).stdout

    def counts(self):
        upstream = json.loads(self.ctl("status", "-o", "json"))["upstreams"][0]
        return int(upstream.get("acknowledged", 0)), int(upstream.get("pending", 0))

    def wait_for(self, acknowledged, pending):
        deadline = time.monotonic() + DEADLINE
        while self.counts() != (acknowledged, pending):
            if time.monotonic() > deadline:
                raise SystemExit("not in time: %d acknowledged, %d pending" % self.counts())
            time.sleep(0.1)

    def register(self, first, count):
        """As clients of the sidecar do, which has no configuration of theirs."""
        path = os.path.join(self.folder, "instances.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump([{"key": {"service": "orders-%d" % (i % 100), "instance_id": "i%d" % i},
                        "address": "10.0.0.1", "port": 80, "zone": "eu-1a",
                        "metadata": {"version": "1.10"}} for i in range(first, first + count)], file)
        self.ctl("register", "-f", path)

    def get(self, path):
        request = urllib.request.Request("http://%s%s" % (self.console, path),
                                         headers={"accept": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def look(self, path):
        """All pages, as the console asks for them."""
        token = None
        while token != "":
            page = self.get(path + ("&page_token=" + urllib.request.quote(token) if token else ""))
            token = page.get("nextPageToken", "")


def services(count, checks=False):
    check = ", checks: [{tcp: {address: '127.0.0.1:PORT'}}]" if checks else ""
    return ["- {name: orders-%d, id: i%d, address: 10.0.0.1, port: 80, zone: eu-1a, "
            "metadata: {version: '1.10'}%s}\n" % (i % 100, i, check) for i in range(count)]


def figures_of(pid, window, rounds):
    time.sleep(5)  # what the start has left to do
    samples = [Sample(pid)]
    for _ in range(rounds):
        time.sleep(window)
        samples.append(Sample(pid))
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


def at_rest(folder, args, count, checks=False):
    with Daemons(folder, services(count, checks)) as daemons:
        daemons.wait_for(count, 0)
        return figures_of(daemons.agent.pid, args.window, args.rounds)


def from_file(folder, args):
    starts = []
    for _ in range(args.rounds):
        with Daemons(folder, services(args.many)) as daemons:
            starts.append(daemons.seconds_to_start)
            daemons.wait_for(args.many, 0)
            figures = figures_of(daemons.agent.pid, args.window, 1)
            most = most_resident(daemons.agent.pid)
    return {"seconds_to_start": ("s", statistics.median(starts)), **figures,
            "most_resident": ("MB", most)}


def from_clients(folder, args):
    with Daemons(folder) as daemons:
        daemons.register(0, args.many)
        daemons.wait_for(args.many, 0)
        return figures_of(daemons.agent.pid, args.window, 1)


def outage(folder, args):
    """Twice as many are held as come while the registry is away, and someone watches."""
    with Daemons(folder) as daemons:
        daemons.register(0, 2 * args.many)
        daemons.wait_for(2 * args.many, 0)
        daemons.registry.kill()
        daemons.registry.wait()
        watching = True

        def watch():
            paths = ("/pending?page_size=1000", "/intents?page_size=1000")
            while watching:
                for path in paths:
                    daemons.get("/overview")
                    daemons.look(path)
                    time.sleep(0.2)

        console = threading.Thread(target=watch)
        console.start()
        try:
            daemons.register(2 * args.many, args.many)
            time.sleep(args.window)
        finally:
            watching = False
            console.join()
        pending = daemons.counts()[1]
        if pending < args.many:
            raise SystemExit("%d of %d are pending" % (pending, args.many))
        daemons.get("/services?page_size=1000")
        return {"resident": ("MB", Sample(daemons.agent.pid).resident),
                "most_resident": ("MB", most_resident(daemons.agent.pid))}


# Each: its name, what measures it, and the aims of its metrics.
WORKLOADS = [
    ("idle", lambda folder, args: at_rest(folder, args, 0), {"resident": 20}),
    ("at-rest-10", lambda folder, args: at_rest(folder, args, 10), {"cpu": 0.1}),
    ("at-rest-10-checks", lambda folder, args: at_rest(folder, args, 10, True), {}),
    ("file-10k", from_file, {"resident": 40, "seconds_to_start": 0.2}),
    ("clients-10k", from_clients, {"resident": 40}),
    ("outage-30k", outage, {"most_resident": 64}),
]


def main():
    parser = argparse.ArgumentParser(prog="./dev bench footprint", description=__doc__)
    parser.add_argument("--json", help="also write JSON lines")
    parser.add_argument("--quick", action="store_true", help="shows that it works, not how much")
    parser.add_argument("--workload", help="only these; several with commas")
    parser.add_argument("--many", type=int, default=10000, help="registrations of the last three")
    parser.add_argument("--window", type=float, default=10.0, help="seconds")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.quick:
        args.window, args.rounds, args.many = 1.0, 1, 500
    wanted = args.workload.split(",") if args.workload else [name for name, _, _ in WORKLOADS]
    unknown = set(wanted) - {name for name, _, _ in WORKLOADS}
    if unknown:
        parser.error("no workload %s; there are: %s" % (
            ", ".join(unknown), ", ".join(name for name, _, _ in WORKLOADS)))
    print("machine: %s, %d CPUs, load %.1f; %d rounds of %g s, medians" % (
        platform.machine(), os.cpu_count(), os.getloadavg()[0], args.rounds, args.window))
    out = open(args.json, "w", encoding="utf-8") if args.json else None
    for name, measure, aims in WORKLOADS:
        if name not in wanted:
            continue
        with tempfile.TemporaryDirectory(prefix="fb-") as folder:
            figures = measure(folder, args)
        print("%-18s %s" % (name, ", ".join(
            "%s %.3g %s" % (metric, value, unit) for metric, (unit, value) in figures.items())))
        for metric, aim in aims.items():
            held = "held" if figures[metric][1] <= aim else "missed"
            print("%-18s %s: at most %g: %s" % ("", metric, aim, held))
        if out:
            for metric, (unit, value) in figures.items():
                out.write(json.dumps({"workload": name, "subject": "failback-agent",
                                      "metric": metric, "value": value, "unit": unit}) + "\n")


if __name__ == "__main__":
    main()
