"""The manifests of deploy/kubernetes: each is parsed and checked against the restricted profile, and their
story is run with real daemons."""

import glob
import http.server
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest
import urllib.request

import cluster
import manifests
from ports import reserved_address

ROOT = "deploy/kubernetes"
PROGRAMS = {
    "failback-agent": os.path.abspath("agent/failback-agent"),
    "failbackctl": os.path.abspath("agent/failbackctl"),
    "failback-registry": os.path.abspath("registry/failback-registry"),
}


class Checks(unittest.TestCase):
    def test_every_file_is_part_of_a_kustomization(self):
        for folder in sorted(glob.glob(ROOT + "/*/")):
            (kustomization,) = manifests.load(folder + "kustomization.yaml")
            named = set(kustomization["resources"]) | {"kustomization.yaml"}
            for generator in kustomization.get("configMapGenerator", []):
                named |= set(generator["files"])
            named |= {patch["path"] for patch in kustomization.get("patches", [])}
            self.assertEqual(set(os.listdir(folder)), named & set(os.listdir(folder)), folder)

    def workloads(self):
        for folder in sorted(glob.glob(ROOT + "/*/")):
            objects = manifests.build(folder)
            for item in objects.values():
                if manifests.pod_spec(item):
                    yield objects, item

    def test_pods_meet_the_restricted_profile(self):
        count = 0
        for _, item in self.workloads():
            spec = manifests.pod_spec(item)
            context = spec["securityContext"]
            self.assertTrue(context["runAsNonRoot"])
            self.assertGreater(context["runAsUser"], 0)
            self.assertEqual(context["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertFalse(spec["automountServiceAccountToken"])
            for container in manifests.containers(item):
                count += 1
                security = container["securityContext"]
                self.assertFalse(security["allowPrivilegeEscalation"])
                self.assertTrue(security["readOnlyRootFilesystem"])
                self.assertEqual(security["capabilities"], {"drop": ["ALL"]})
                self.assertIn("memory", container["resources"]["limits"])
                self.assertNotRegex(container["image"], r"(:latest|^[^:]+)$")
        self.assertGreaterEqual(count, 3)

    def test_references_lead_somewhere(self):
        for objects, item in self.workloads():
            spec = manifests.pod_spec(item)
            volumes = {volume["name"] for volume in spec.get("volumes", [])}
            volumes |= {claim["metadata"]["name"]
                        for claim in item["spec"].get("volumeClaimTemplates", [])}
            for volume in spec.get("volumes", []):
                if "configMap" in volume:
                    self.assertIn(("ConfigMap", volume["configMap"]["name"]), objects)
            used = set()
            for container in manifests.containers(item):
                used |= {mount["name"] for mount in container.get("volumeMounts", [])}
            self.assertEqual(used, volumes)
            labels = item["spec"]["template"]["metadata"]["labels"]
            self.assertLessEqual(item["spec"]["selector"]["matchLabels"].items(), labels.items())
            if "serviceName" in item["spec"]:
                service = objects["Service", item["spec"]["serviceName"]]
                self.assertLessEqual(service["spec"]["selector"].items(), labels.items())
                ports = {port["name"] for container in manifests.containers(item)
                         for port in container["ports"]}
                self.assertLessEqual({p["targetPort"] for p in service["spec"]["ports"]}, ports)

    def test_the_grace_period_covers_the_drain(self):
        (sidecar,) = manifests.build(ROOT + "/app")["Deployment", "orders"]["spec"]["template"][
            "spec"]["initContainers"]
        self.assertEqual(sidecar["restartPolicy"], "Always")
        spec = manifests.pod_spec(manifests.build(ROOT + "/app")["Deployment", "orders"])
        deadline = sidecar["lifecycle"]["preStop"]["exec"]["command"][-1]
        agent = manifests.build(ROOT + "/app")["ConfigMap", "orders-failback"]["data"]["agent.yaml"]
        on_signal = re.search(r"^drain_deadline: (\d+)s$", agent, re.M).group(1)
        self.assertLess(int(deadline.rstrip("s")) + int(on_signal),
                        spec["terminationGracePeriodSeconds"])

    def test_the_image_has_what_the_manifests_start(self):
        with open("deploy/package/image.py", encoding="utf-8") as file:
            text = file.read()
        self.assertIn("USER = 65532\n", text)
        (programs,) = re.findall(r"^PROGRAMS = (.*)$", text, re.M)
        for program in PROGRAMS:
            self.assertIn('"%s"' % program, programs)


class App:
    """The service: answers /healthz as it is told."""

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
        self.etcd = ""
        self.app = App()
        self.addCleanup(self.app.stop)
        self.pods = []
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
            "failback-registry.failback.svc:7070": self.address,
            ETCD: self.etcd,
            "port: 8080": "port: %d" % self.app.port,
            # Quicker than people need.
            "interval: 5s": "interval: 1s",
        }
        pod = cluster.Pod(objects[key], folder, config_maps, PROGRAMS, addresses, name, uid, ip,
                          labels or {}, self.secrets)
        self.pods.append(pod)
        return pod

    def app_pod(self, name, uid, folder="/app"):
        # The app listens on 127.0.0.1, which is so the pod's IP.
        return self.pod(manifests.build(ROOT + folder), ("Deployment", "orders"), name, uid,
                        "127.0.0.1", {"topology.kubernetes.io/zone": "eu-1a"})

    def listed(self):
        out = subprocess.run([PROGRAMS["failbackctl"], "--target", self.address.split(",")[-1],
                              "--timeout", "30s", *self.credentials, "list", "orders", "--namespace", "shop", "-o", "json"],
                             capture_output=True, text=True, timeout=cluster.PATIENCE, check=False)
        return json.loads(out.stdout) if out.returncode == 0 else []

    def names(self):
        return [(record["instance"]["key"]["instanceId"], record["instance"].get("status"))
                for record in self.listed()]

    def becomes(self, expected):
        cluster.eventually(lambda: self.names() == expected,
                           "%s are listed; now %s" % (expected, self.names()))


class Story(Cluster):
    def setUp(self):
        super().setUp()
        self.registry = self.pod(manifests.build(ROOT + "/registry"),
                                 ("StatefulSet", "failback-registry"), "failback-registry-0", "r",
                                 "10.0.0.1")
        self.registry.start("registry")

    def check_metrics(self, pod, name, program):
        """Prometheus finds the container by the annotations, and gets its metrics."""
        annotations = pod.item["spec"]["template"]["metadata"]["annotations"]
        self.assertEqual(annotations["prometheus.io/scrape"], "true")
        ports = [port["containerPort"] for port in pod.container(name)["ports"]]
        self.assertIn(int(annotations["prometheus.io/port"]), ports)
        (address,) = re.findall(r"admin (http://[^ ,]+)", pod.log(name))
        with urllib.request.urlopen(address + "/metrics", timeout=cluster.PATIENCE) as response:
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
        cluster.eventually(lambda: pod.probe("failback-agent", "readinessProbe"), "readiness")

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
        cluster.eventually(lambda: [record["instance"].get("weight") for record in self.listed()] == [7], "the weight")

        # The service fails, and the list says so.
        self.app.well = False
        self.becomes([("orders-2", "HEALTH_STATUS_UNHEALTHY")])
        self.assertEqual(other.stop("failback-agent"), 0)
        self.assertEqual(self.names(), [])
        self.assertEqual(self.registry.stop("registry"), 0)


class StoryOverTls(Cluster):
    """The overlays: only a caller with a certificate is accepted, and only for what the policy allows."""

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
        self.registry = self.pod(manifests.build(ROOT + "/registry-tls"),
                                 ("StatefulSet", "failback-registry"), "failback-registry-0", "r",
                                 "10.0.0.1")
        self.registry.start("registry")

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

    def served_name(self):
        """The common name in the certificate that the registry shows."""
        context = ssl.create_default_context(cafile=os.path.join(self.tls, "ca.crt"))
        context.load_cert_chain(os.path.join(self.tls, "operator.crt"),
                                os.path.join(self.tls, "operator.key"))
        host, port = self.address.split(":")
        with socket.create_connection((host, int(port)), timeout=cluster.PATIENCE) as plain:
            with context.wrap_socket(plain, server_hostname="failback-registry.failback.svc") as tls:
                return dict(field[0] for field in tls.getpeercert()["subject"])["commonName"]

    def ask(self, credentials, *args):
        return subprocess.run([PROGRAMS["failbackctl"], "--target", self.address, *credentials, *args],
                              capture_output=True, text=True, timeout=cluster.PATIENCE, check=False)

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
        cluster.eventually(lambda: self.served_name() == "registry-2", "the new certificate")
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


@unittest.skipUnless(os.path.exists(PROGRAMS["failback-registry"]) and knows_etcd(),
                     "etcd is not installed, or not a store of this registry")
class StoryOverEtcd(Cluster):
    def start_etcd(self):
        self.etcd, peer = reserved_address(), reserved_address()
        urls = {"client": "http://" + self.etcd, "peer": "http://" + peer}
        process = subprocess.Popen(
            ["etcd", "--data-dir", os.path.join(self.folder.name, "etcd"), "--unsafe-no-fsync",
             "--listen-client-urls", urls["client"], "--advertise-client-urls", urls["client"],
             "--listen-peer-urls", urls["peer"], "--initial-advertise-peer-urls", urls["peer"],
             "--initial-cluster", "default=" + urls["peer"], "--log-level", "error"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def test_any_registry_may_go(self):
        self.start_etcd()
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
            cluster.eventually(lambda: registries[-1].probe("registry", "readinessProbe"), "readiness")
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
