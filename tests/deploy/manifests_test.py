"""The manifests of deploy/kubernetes: their story, with real daemons."""

import contextlib
import http.server
import json
import os
import re
import shutil
import socket
import sqlite3
import ssl
import subprocess
import tempfile
import threading
import unittest
import urllib.request

import cluster
import manifests
from eventually import DEADLINE, eventually
from ports import reserved_address

ROOT = "deploy/kubernetes"
PROGRAMS = {
    "failback-agent": os.path.abspath("agent/failback-agent"),
    "failbackctl": os.path.abspath("agent/failbackctl"),
    "failback-registry": os.path.abspath("registry/failback-registry"),
}


class App:
    """The service: answers /healthz as the test says."""

    def __init__(self):
        self.well = False
        app = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # pylint: disable=invalid-name
                good = app.well and self.path == "/healthz"
                self.send_response(200 if good else 503)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


ETCD = "etcd-0.etcd.failback.svc:2379,etcd-1.etcd.failback.svc:2379,etcd-2.etcd.failback.svc:2379"
HEALTHY = "HEALTH_STATUS_HEALTHY"


class Cluster(unittest.TestCase):
    """Pods, and what they need."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="fb-")
        self.addCleanup(self.folder.cleanup)
        # Where clients find the registry: one address, or those of several pods.
        self.address = reserved_address()
        # What else a registry listens on, by the port of its manifest.
        self.gateway = {port: reserved_address() for port in (7072, 7073, 8500, 8761)}
        self.etcd = ""
        self.app = App()
        self.addCleanup(self.app.stop)
        self.pods = []
        # The volumes that outlive pods.
        self.claims = {name: os.path.join(self.folder.name, name)
                       for name in ("store-failback-registry-0", "failback-registry-backup")}
        self.addCleanup(lambda: [pod.kill_all() for pod in self.pods])

    # By name; and how failbackctl shows who it is.
    secrets = {}
    credentials = []

    def pod(self, objects, key, name, uid, ip, labels=None, listen=None):
        folder = os.path.join(self.folder.name, uid)
        os.mkdir(folder)
        config_maps = {name: item["data"] for (kind, name), item in objects.items()
                       if kind == "ConfigMap"}
        addresses = {
            "0.0.0.0:7070": listen or self.address,
            "0.0.0.0:7071": "127.0.0.1:0",
            "0.0.0.0:7061": "127.0.0.1:0",
            **{"0.0.0.0:%d" % port: address for port, address in self.gateway.items()},
            "failback-registry.failback.svc:7070": self.address,
            ETCD: self.etcd,
            "port: 8080": "port: %d" % self.app.port,
            # Quicker than people need.
            "interval: 5s": "interval: 1s",
        }
        pod = cluster.Pod(objects[key], folder, config_maps, PROGRAMS, addresses, name, uid, ip,
                          labels or {}, self.secrets, self.claims)
        self.pods.append(pod)
        return pod

    def app_pod(self, name, uid, folder="/app"):
        # The app listens on 127.0.0.1, which is so the pod's IP.
        return self.pod(manifests.build(ROOT + folder), ("Deployment", "orders"), name, uid,
                        "127.0.0.1", {"topology.kubernetes.io/zone": "eu-1a"})

    def started_registry(self, folder):
        pod = self.pod(manifests.build(folder), ("StatefulSet", "failback-registry"), "failback-registry-0",
                       "r", "10.0.0.1")
        pod.start("registry")
        return pod

    def listed(self):
        out = subprocess.run([PROGRAMS["failbackctl"], "--target", self.address.split(",")[-1],
                              "--timeout", "30s", *self.credentials, "list", "orders", "--namespace", "shop", "-o", "json"],
                             capture_output=True, text=True, timeout=DEADLINE, check=False)
        return json.loads(out.stdout) if out.returncode == 0 else []

    def names(self):
        return [(record["instance"]["key"]["instanceId"], record["instance"].get("status"))
                for record in self.listed()]

    def becomes(self, expected):
        eventually(lambda: self.names() == expected,
                           "%s are listed; now %s" % (expected, self.names()))


class Story(Cluster):
    def setUp(self):
        super().setUp()
        self.registry = self.started_registry(ROOT + "/registry")

    def check_metrics(self, pod, name, program):
        """Prometheus finds the container by the annotations, and gets its metrics."""
        annotations = pod.item["spec"]["template"]["metadata"]["annotations"]
        self.assertEqual(annotations["prometheus.io/scrape"], "true")
        ports = [port["containerPort"] for port in pod.container(name)["ports"]]
        self.assertIn(int(annotations["prometheus.io/port"]), ports)
        (address,) = re.findall(r"admin (http://[^ ,]+)", pod.log(name))
        with urllib.request.urlopen(address + "/metrics", timeout=DEADLINE) as response:
            self.assertIn('failback_build_info{program="%s"' % program, response.read().decode())

    def check_bootstrap(self, pod):
        """The service is given what its gRPC clients need to discover through the sidecar."""
        (path,) = [variable["value"] for variable in pod.container("orders")["env"]
                   if variable["name"] == "GRPC_XDS_BOOTSTRAP"]
        with open(pod.replace_paths(path, pod.all_mounts()), encoding="utf-8") as file:
            bootstrap = json.load(file)
        (server,) = bootstrap["xds_servers"]
        self.assertRegex(server["server_uri"], "^unix:.*/agent.sock$")
        self.assertEqual(bootstrap["node"]["locality"]["zone"], "eu-1a")

    def test_the_life_of_a_pod(self):
        self.assertTrue(self.registry.probe("registry", "readinessProbe"))
        self.assertTrue(self.registry.probe("registry", "livenessProbe"))
        pod = self.app_pod("orders-1", "u1")
        pod.start("failback-agent")
        self.assertTrue(pod.probe("failback-agent", "livenessProbe"))
        self.check_bootstrap(pod)
        self.check_metrics(self.registry, "registry", "failback-registry")
        self.check_metrics(pod, "failback-agent", "failback-agent")
        # The service is not well yet, and not listed.
        self.assertEqual(self.names(), [])
        self.app.well = True
        self.becomes([("orders-1", HEALTHY)])
        (record,) = self.listed()
        self.assertEqual(record["instance"]["address"], "127.0.0.1")
        self.assertEqual(record["instance"]["port"], self.app.port)
        self.assertEqual(record["instance"]["zone"], "eu-1a")
        self.assertEqual(record["instance"]["metadata"]["app.kubernetes.io/name"], "orders")
        self.assertEqual(record["incarnation"], "u1")
        eventually(lambda: pod.probe("failback-agent", "readinessProbe"), "readiness")

        # The sidecar is killed and started again: still there.
        pod.processes["failback-agent"].kill()
        pod.processes.pop("failback-agent").wait()
        pod.start("failback-agent")
        self.becomes([("orders-1", HEALTHY)])

        # The registry is replaced, on its volume.
        self.registry.stop("registry")
        self.assertTrue(pod.probe("failback-agent", "livenessProbe"))
        self.registry.start("registry")
        self.becomes([("orders-1", HEALTHY)])

        # A second pod; then the first one ends as Kubernetes ends it.
        other = self.app_pod("orders-2", "u2")
        other.start("failback-agent")
        self.becomes([("orders-1", HEALTHY), ("orders-2", HEALTHY)])
        drained = pod.pre_stop("failback-agent")
        self.assertEqual((drained.returncode, drained.stdout), (0, "unregistered 1, remaining 0\n"))
        self.assertEqual(self.names(), [("orders-2", HEALTHY)])
        self.assertFalse(pod.probe("failback-agent", "readinessProbe"))
        self.assertEqual(pod.stop("failback-agent"), 0)

        # A new configuration reaches the running pod through its volume.
        config = manifests.build(ROOT + "/app")["ConfigMap", "orders-failback"]["data"]
        config["agent.yaml"] = config["agent.yaml"].replace("- name: orders\n",
                                                            "- name: orders\n  weight: 7\n")
        other.publish("failback-config", config)
        eventually(lambda: [record["instance"].get("weight") for record in self.listed()] == [7], "the weight")

        # The service fails, and the list says so.
        self.app.well = False
        self.becomes([("orders-2", "HEALTH_STATUS_UNHEALTHY")])
        self.assertEqual(other.stop("failback-agent"), 0)
        self.assertEqual(self.names(), [])
        self.assertEqual(self.registry.stop("registry"), 0)


class Gateway(Cluster):
    """Programs without a sidecar: they call the Service failback-gateway."""

    def call(self, port, path, method="GET", body=None):
        request = urllib.request.Request("http://%s%s" % (self.gateway[port], path), method=method,
                                         data=body and json.dumps(body).encode(),
                                         headers={"Host": "failback-gateway.failback.svc:%d" % port,
                                                  "Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=DEADLINE) as response:
            return json.load(response)

    def dig(self, *words):
        host, port = self.gateway[7073].split(":")
        return subprocess.run(["dig", "@" + host, "-p", port, "+short", *words], capture_output=True, text=True,
                              timeout=DEADLINE, check=True).stdout.split()

    def test_each_kind_of_client_sees_what_one_has_put(self):
        registry = self.started_registry(ROOT + "/registry-gateway")
        put = self.call(7072, "/v1/services/orders/instances/orders-1?ttl=30s", "PUT",
                        {"address": "10.0.0.7", "port": 8080})
        self.assertEqual(put["state"], "INTENT_STATE_ACKNOWLEDGED")
        (entry,) = self.call(8500, "/v1/health/service/orders")
        self.assertEqual(entry["Service"]["Address"], "10.0.0.7")
        application = self.call(8761, "/eureka/apps/ORDERS")["application"]
        self.assertEqual([instance["ipAddr"] for instance in application["instance"]], ["10.0.0.7"])
        for how in ("+notcp", "+tcp"):
            self.assertEqual(self.dig(how, "orders.service.failback"), ["10.0.0.7"])
        self.assertEqual(registry.stop("registry"), 0)


class BackupAndRollback(Cluster):
    def setUp(self):
        super().setUp()
        self.objects = manifests.build(ROOT + "/registry")
        self.start_registry("r1")

    def start_registry(self, uid):
        """A pod of the StatefulSet, on its volume."""
        self.registry = self.pod(self.objects, ("StatefulSet", "failback-registry"),
                                 "failback-registry-0", uid, "10.0.0.1")
        self.registry.start("registry")

    def run_job(self, objects, key, name):
        pod = self.pod(objects, key, name, name, "10.0.0.2")
        (container,) = pod.containers()
        return pod.run(container["name"])

    def back_up(self, name):
        return self.run_job(self.objects, ("CronJob", "failback-registry-backup"), name)

    def restore(self, name):
        return self.run_job(manifests.build(ROOT + "/restore"),
                            ("Job", "failback-registry-restore"), name)

    def registered(self):
        return [instance for instance, _ in self.names()]

    def register(self, name):
        """By hand, at the registry: no agent sends it again."""
        done = self.ctl("register", "orders", "--namespace", "shop", "--id", name, "--address",
                        "10.0.0.9", "--port", "1")
        self.assertEqual(done.returncode, 0, done.stderr)

    def ctl(self, *args):
        return subprocess.run([PROGRAMS["failbackctl"], "--target", self.address, *args],
                              capture_output=True, text=True, timeout=DEADLINE, check=False)

    def backups(self):
        return sorted(os.listdir(self.claims["failback-registry-backup"]))

    def test_what_the_cron_job_has_made_the_restore_job_puts_back(self):
        self.register("before")
        made = self.back_up("backup-1")
        self.assertEqual(made.returncode, 0, made.stderr)
        (backup,) = self.backups()
        self.assertIn("backed up to", made.stdout)
        self.register("after")
        # With the registry running it refuses, and nothing is changed.
        refused = self.restore("restore-1")
        self.assertEqual(refused.returncode, 2)
        self.assertEqual(self.registered(), ["after", "before"])
        # The StatefulSet is scaled to none and back.
        self.assertEqual(self.registry.stop("registry"), 0)
        restored = self.restore("restore-2")
        self.assertEqual(restored.returncode, 0, restored.stderr)
        self.assertIn(backup, restored.stdout)
        self.start_registry("r2")
        self.assertEqual(self.registered(), ["before"])

    def test_a_rollback_over_a_store_of_a_later_schema(self):
        self.register("before")
        self.assertEqual(self.back_up("backup-1").returncode, 0)
        self.assertEqual(self.registry.stop("registry"), 0)
        # As a later version leaves it.
        store = self.claims["store-failback-registry-0"] + "/registry.db"
        with contextlib.closing(sqlite3.connect(store)) as database:
            database.execute("PRAGMA user_version = 1000")
        # The pod of the older version does not start, says why, and changes nothing.
        pod = self.pod(self.objects, ("StatefulSet", "failback-registry"), "failback-registry-0",
                       "r2", "10.0.0.1")
        refused = pod.run("registry")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("schema 1000", refused.stderr)
        self.assertEqual(self.restore("restore-1").returncode, 0)
        self.start_registry("r3")
        self.assertEqual(self.registered(), ["before"])


class Certified(Cluster):
    """An authority, and what it has signed."""

    def setUp(self):
        super().setUp()
        self.tls = os.path.join(self.folder.name, "tls")
        os.mkdir(self.tls)
        self.openssl("-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test")
        self.secrets = {
            "failback-registry-tls": self.issue("registry", "DNS:failback-registry.failback.svc"),
            "orders-failback-tls": self.issue("orders", "URI:spiffe://cluster.local/ns/shop/sa/orders")}
        self.issue("operator", "URI:spiffe://cluster.local/ns/failback/sa/operator")
        self.credentials = self.shows("operator")

    def openssl(self, *args):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-days", "1", *args], cwd=self.tls, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def issue(self, name, alternative_name):
        """A certificate of the authority, as the Secret that cert-manager would write."""
        self.openssl("-nodes", "-CA", "ca.crt", "-CAkey", "ca.key", "-subj", "/CN=" + name,
                     "-addext", "subjectAltName=" + alternative_name, "-addext",
                     "basicConstraints=critical,CA:FALSE", "-keyout", name + ".key", "-out",
                     name + ".crt")

        def text(file):
            with open(os.path.join(self.tls, file), encoding="utf-8") as content:
                return content.read()

        return {"tls.crt": text(name + ".crt"), "tls.key": text(name + ".key"),
                "ca.crt": text("ca.crt")}

    def shows(self, name):
        path = os.path.join(self.tls, name)
        return ["--tls-ca", os.path.join(self.tls, "ca.crt"), "--tls-cert", path + ".crt", "--tls-key",
                path + ".key", "--tls-server-name", "failback-registry.failback.svc"]

    def ask(self, credentials, *args):
        return subprocess.run([PROGRAMS["failbackctl"], "--target", self.address.split(",")[-1],
                               *credentials, *args],
                              capture_output=True, text=True, timeout=DEADLINE, check=False)


class StoryOverTls(Certified):
    """The overlays: only a caller with a certificate is accepted, and only for what the policy allows."""

    def setUp(self):
        super().setUp()
        self.registry = self.started_registry(ROOT + "/registry-tls")

    def served_name(self):
        """The common name in the certificate that the registry shows."""
        context = ssl.create_default_context(cafile=os.path.join(self.tls, "ca.crt"))
        context.load_cert_chain(os.path.join(self.tls, "operator.crt"),
                                os.path.join(self.tls, "operator.key"))
        host, port = self.address.split(":")
        with socket.create_connection((host, int(port)), timeout=DEADLINE) as plain:
            with context.wrap_socket(plain, server_hostname="failback-registry.failback.svc") as tls:
                return dict(field[0] for field in tls.getpeercert()["subject"])["commonName"]

    def test_the_life_of_a_pod_with_a_certificate(self):
        for probe in ("readinessProbe", "livenessProbe"):
            self.assertTrue(self.registry.probe("registry", probe))
        self.app.well = True
        pod = self.app_pod("orders-1", "u1", "/app-tls")
        pod.start("failback-agent")
        self.becomes([("orders-1", HEALTHY)])
        # Without a certificate every caller is refused; with one, all but what is its own.
        self.assertEqual(self.ask([], "list").returncode, 3)
        elsewhere = self.ask(self.shows("orders"), "register", "orders", "--namespace", "other",
                             "--address", "10.0.0.9", "--port", "1")
        self.assertEqual(elsewhere.returncode, 1)
        self.assertIn("PERMISSION_DENIED", elsewhere.stderr)
        # A pod that still speaks plain text does not get through, and is none the worse for it.
        plain = self.app_pod("orders-2", "u2")
        plain.start("failback-agent")
        self.assertTrue(plain.probe("failback-agent", "livenessProbe"))
        # A new certificate is taken by the running registry.
        self.assertEqual(self.served_name(), "registry")
        self.registry.publish("tls", self.issue("registry-2", "DNS:failback-registry.failback.svc"))
        eventually(lambda: self.served_name() == "registry-2", "the new certificate")
        drained = pod.pre_stop("failback-agent")
        self.assertEqual((drained.returncode, drained.stdout), (0, "unregistered 1, remaining 0\n"))
        self.assertEqual(self.names(), [])
        self.assertEqual(pod.stop("failback-agent"), 0)
        self.assertEqual(self.registry.stop("registry"), 0)


def knows_etcd():
    if not shutil.which("etcd"):
        return False
    words = subprocess.run([PROGRAMS["failback-registry"], "--help"], capture_output=True, text=True,
                           check=True).stdout
    return "etcd://" in words


def start_etcd(test, *security):
    """Etcd for a test; with `security`, over TLS."""
    test.etcd, peer = reserved_address(), reserved_address()
    scheme = "https" if security else "http"
    urls = {"client": "%s://%s" % (scheme, test.etcd), "peer": "http://" + peer}
    process = subprocess.Popen(
        ["etcd", "--data-dir", os.path.join(test.folder.name, "etcd"), "--unsafe-no-fsync",
         "--listen-client-urls", urls["client"], "--advertise-client-urls", urls["client"],
         "--listen-peer-urls", urls["peer"], "--initial-advertise-peer-urls", urls["peer"],
         "--initial-cluster", "default=" + urls["peer"], "--log-level", "error", *security],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    test.addCleanup(process.wait)
    test.addCleanup(process.kill)


ETCD_IS_MISSING = unittest.skipUnless(
    os.path.exists(PROGRAMS["failback-registry"]) and knows_etcd(),
    "etcd is not installed, or not a store of this registry")


@ETCD_IS_MISSING
class StoryOverEtcdAndTls(Certified):
    """Over TLS on both sides: the registries show etcd a certificate, and ask callers for theirs."""

    def test_the_life_of_a_pod_with_a_certificate(self):
        self.issue("etcd", "IP:127.0.0.1")
        self.secrets["failback-etcd-tls"] = self.issue("registry-at-etcd", "DNS:failback-registry")
        path = os.path.join(self.tls, "etcd")
        start_etcd(self, "--cert-file", path + ".crt", "--key-file", path + ".key", "--client-cert-auth",
                   "--trusted-ca-file", os.path.join(self.tls, "ca.crt"))
        registry = self.pod(manifests.build(ROOT + "/registry-etcd-tls"),
                            ("Deployment", "failback-registry"), "failback-registry-1", "r", "10.0.0.1")
        registry.start("registry")
        eventually(lambda: registry.probe("registry", "readinessProbe"), "readiness")
        self.app.well = True
        pod = self.app_pod("orders-1", "u1", "/app-tls")
        pod.start("failback-agent")
        self.becomes([("orders-1", HEALTHY)])
        self.assertEqual(self.ask([], "list").returncode, 3)
        elsewhere = self.ask(self.shows("orders"), "register", "orders", "--namespace", "other",
                             "--address", "10.0.0.9", "--port", "1")
        self.assertIn("PERMISSION_DENIED", elsewhere.stderr)
        self.assertEqual(pod.stop("failback-agent"), 0)
        self.becomes([])
        self.assertEqual(registry.stop("registry"), 0)


@ETCD_IS_MISSING
class StoryOverEtcd(Cluster):
    def test_any_registry_may_go(self):
        start_etcd(self)
        objects = manifests.build(ROOT + "/registry-etcd")
        addresses = [reserved_address() for _ in range(2)]
        self.address = ",".join(addresses)
        registries = []
        for i, address in enumerate(addresses):
            registries.append(self.pod(objects, ("Deployment", "failback-registry"),
                                       "failback-registry-%d" % i, "r%d" % i, "10.0.0.1",
                                       listen=address))
            registries[-1].start("registry")
            # As soon as etcd has answered it.
            eventually(lambda: registries[-1].probe("registry", "readinessProbe"), "readiness")
        self.app.well = True
        pod = self.app_pod("orders-1", "u1")
        pod.start("failback-agent")
        self.becomes([("orders-1", HEALTHY)])
        # The one is killed; the other has all, and takes what is new.
        registries[0].processes["registry"].kill()
        registries[0].processes.pop("registry").wait()
        other = self.app_pod("orders-2", "u2")
        other.start("failback-agent")
        self.becomes([("orders-1", HEALTHY), ("orders-2", HEALTHY)])
        self.assertEqual(pod.stop("failback-agent"), 0)
        self.becomes([("orders-2", HEALTHY)])


if __name__ == "__main__":
    unittest.main()
