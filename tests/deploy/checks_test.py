"""The manifests of deploy/kubernetes as texts: fields and types, the restricted profile, and that what they name is
there: volumes, labels, ports, flags of the programs."""

import copy
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import yaml

import fields
import manifests

ROOT = "deploy/kubernetes"
PROGRAMS = {
    "failback-agent": "agent/failback-agent",
    "failbackctl": "agent/failbackctl",
    "failback-registry": "registry/failback-registry",
}
FOLDERS = sorted(os.path.basename(path.rstrip("/")) for path in glob.glob(ROOT + "/*/"))
# By folder, what each kustomization builds. A component is built as a part of them.
BUILT = {folder: manifests.build("%s/%s" % (ROOT, folder)) for folder in FOLDERS
         if not manifests.is_component("%s/%s" % (ROOT, folder))}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def workloads():
    """(folder, objects, item) of each object that makes pods."""
    for folder, objects in BUILT.items():
        for item in objects.values():
            if manifests.pod_spec(item):
                yield folder, objects, item


def labels_of(item):
    return manifests.pod_template(item)["metadata"]["labels"]


def selects(selector, labels):
    return selector.get("matchLabels", selector).items() <= labels.items()


def ports_of(item):
    return {port["name"]: port["containerPort"] for container in manifests.containers(item)
            for port in container.get("ports", [])}


class Checks(unittest.TestCase):
    def test_every_file_is_part_of_a_kustomization(self):
        for folder in FOLDERS:
            (kustomization,) = manifests.load("%s/%s/kustomization.yaml" % (ROOT, folder))
            named = set(kustomization.get("resources", [])) | {"kustomization.yaml"}
            for generator in kustomization.get("configMapGenerator", []):
                named |= set(generator["files"])
            named |= {patch["path"] for patch in kustomization.get("patches", [])}
            found = set(os.listdir("%s/%s" % (ROOT, folder)))
            self.assertEqual(found, named & found, folder)

    def test_every_field_is_one_that_kubernetes_has(self):
        for folder, objects in BUILT.items():
            for item in objects.values():
                self.assertEqual(fields.problems_of(item), [], folder)

    def test_the_check_of_fields_finds_mistakes(self):
        def with_container(**changes):
            item = copy.deepcopy(BUILT["registry-etcd"]["Deployment", "failback-registry"])
            container = manifests.containers(item)[0]
            for key, value in changes.items():
                if value is None:
                    del container[key]
                else:
                    container[key] = value
            return fields.problems_of(item)

        at = "Deployment/failback-registry/spec/template/spec/containers/0"
        self.assertEqual(with_container(), [])
        self.assertEqual(with_container(livenesProbe={}), [at + ": Container has no field livenesProbe"])
        self.assertEqual(with_container(image=None), [at + ": image is missing"])
        self.assertEqual(with_container(args=["-p", 1]), [at + "/args/1: 1 is no string"])
        self.assertEqual(with_container(ports=[{"containerPort": 70000, "name": "a-name-too-long-for-it"}]), [
            at + "/ports/0/containerPort: 70000 is no port",
            at + "/ports/0/name: 'a-name-too-long-for-it' is no portname"])

    @unittest.skipUnless(shutil.which("kubectl"), "kubectl is not installed: the tests' own reading counts")
    def test_kustomize_builds_what_the_tests_read(self):
        def canonical(item):
            return json.dumps(item, sort_keys=True)

        # It follows no link out of the folder.
        folder = tempfile.TemporaryDirectory(prefix="fb-")
        self.addCleanup(folder.cleanup)
        tree = shutil.copytree(ROOT, folder.name + "/kubernetes")
        for folder, objects in BUILT.items():
            built = subprocess.run(["kubectl", "kustomize", "%s/%s" % (tree, folder)], capture_output=True,
                                   text=True, check=False)
            self.assertEqual(built.returncode, 0, built.stderr)
            theirs = [item for item in yaml.safe_load_all(built.stdout) if item]
            self.assertEqual(sorted(map(canonical, theirs)), sorted(map(canonical, objects.values())), folder)

    def test_pods_meet_the_restricted_profile(self):
        count = 0
        for _, objects, item in workloads():
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
                self.assertNotRegex(container["image"], r"(:latest|^[^:]+)$")
            for (kind, _), namespace in objects.items():
                if kind == "Namespace":
                    self.assertEqual(namespace["metadata"]["labels"],
                                     {"pod-security.kubernetes.io/enforce": "restricted"})
        self.assertGreaterEqual(count, 8)

    def test_volumes_lead_somewhere(self):
        claims = {"store-failback-registry-0"}  # of the StatefulSet's one pod
        for _, objects, _ in workloads():
            claims |= {name for kind, name in objects if kind == "PersistentVolumeClaim"}
        for _, objects, item in workloads():
            spec = manifests.pod_spec(item)
            volumes = {volume["name"] for volume in spec.get("volumes", [])}
            volumes |= {claim["metadata"]["name"]
                        for claim in item["spec"].get("volumeClaimTemplates", [])}
            for volume in spec.get("volumes", []):
                if "configMap" in volume:
                    self.assertIn(("ConfigMap", volume["configMap"]["name"]), objects)
                if "persistentVolumeClaim" in volume:
                    self.assertIn(volume["persistentVolumeClaim"]["claimName"], claims)
            used = set()
            for container in manifests.containers(item):
                used |= {mount["name"] for mount in container.get("volumeMounts", [])}
            self.assertEqual(used, volumes)
        (store,) = BUILT["registry"]["StatefulSet", "failback-registry"]["spec"][
            "volumeClaimTemplates"]
        self.assertEqual(store["metadata"]["name"], "store")

    def test_selectors_and_ports_lead_somewhere(self):
        for folder, objects, item in workloads():
            labels, ports = labels_of(item), ports_of(item)
            if "selector" in item["spec"]:
                self.assertTrue(selects(item["spec"]["selector"], labels), folder)
            for container in manifests.containers(item):
                self.check_ports(container)
            scraped = manifests.pod_template(item)["metadata"].get("annotations", {}).get("prometheus.io/port")
            if scraped:
                self.assertIn(int(scraped), ports.values())
            if "serviceName" in item["spec"]:
                self.assertIn(("Service", item["spec"]["serviceName"]), objects)
        for folder, objects in BUILT.items():
            pods = [item for item in objects.values() if manifests.pod_spec(item)]
            for (kind, name), item in objects.items():
                self.check_selector(kind, item, pods, "%s/%s" % (folder, name))

    def check_ports(self, container):
        """What it listens on is what its ports and probes say."""
        ports = {port["containerPort"] for port in container.get("ports", [])}
        command = container.get("command")  # the service's image has its own
        if command == ["failback-registry"]:
            listens = [int(found) for word in container["args"]
                       for found in re.findall(r"^--[a-z]+=0\.0\.0\.0:(\d+)$", word)]
            self.assertEqual(ports, set(listens))
        if command == ["failback-agent"]:
            config = read(ROOT + "/app/agent.yaml")
            self.assertEqual(ports, {int(port) for port in re.findall(r"0\.0\.0\.0:(\d+)", config)})
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            if "grpc" in container.get(kind, {}):
                self.assertIn(container[kind]["grpc"]["port"], ports)

    def check_selector(self, kind, item, pods, where):
        spec = item.get("spec", {})
        chosen = [pod for pod in pods
                  if selects(spec.get("podSelector") or spec.get("selector") or {"none": ""}, labels_of(pod))]
        if kind in ("Service", "NetworkPolicy", "PodDisruptionBudget") and pods:
            self.assertTrue(chosen, where)
        for pod in chosen:
            if kind == "Service":
                self.assertLessEqual({port["targetPort"] for port in spec["ports"]}, set(ports_of(pod)), where)
            if kind == "NetworkPolicy":
                named = {port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]}
                self.assertLessEqual(named, set(ports_of(pod)), where)

    def test_more_than_one_pod_has_a_disruption_budget(self):
        for folder, objects, item in workloads():
            if item["spec"].get("replicas", 1) > 1:
                self.assertTrue([other for (kind, _), other in objects.items() if kind == "PodDisruptionBudget"
                                 and selects(other["spec"]["selector"], labels_of(item))], folder)

    def test_every_pod_has_a_network_policy(self):
        for folder, objects, item in workloads():
            everything = objects if folder != "restore" else BUILT["registry"]
            self.assertTrue([other for (kind, _), other in everything.items() if kind == "NetworkPolicy"
                             and selects(other["spec"]["podSelector"], labels_of(item))], folder)

    def test_monitors_find_the_daemons(self):
        monitors = BUILT["monitoring"]
        service_monitor = monitors["ServiceMonitor", "failback-registry"]["spec"]
        pod_monitor = monitors["PodMonitor", "failback-agent"]["spec"]
        service = BUILT["base"]["Service", "failback-registry"]
        self.assertTrue(selects(service_monitor["selector"], service["metadata"]["labels"]))
        self.assertLessEqual({endpoint["port"] for endpoint in service_monitor["endpoints"]},
                             {port["name"] for port in service["spec"]["ports"]})
        # The alerts' expressions know the jobs by these names.
        self.assertEqual(service["metadata"]["labels"][service_monitor["jobLabel"]], "failback-registry")
        self.assertEqual([rule for endpoint in pod_monitor["podMetricsEndpoints"]
                          for rule in endpoint["relabelings"]],
                         [{"targetLabel": "job", "replacement": "failback-agent"}])
        app = BUILT["app"]["Deployment", "orders"]
        self.assertTrue(selects(pod_monitor["selector"], labels_of(app)))
        self.assertLessEqual({endpoint["port"] for endpoint in pod_monitor["podMetricsEndpoints"]},
                             set(ports_of(app)))

    def test_the_backup_runs_where_the_store_is(self):
        objects = BUILT["registry"]
        spec = manifests.pod_spec(objects["CronJob", "failback-registry-backup"])
        (term,) = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        registry = objects["StatefulSet", "failback-registry"]
        self.assertTrue(selects(term["labelSelector"], labels_of(registry)))
        # It is the file that the registry has open, by the same path.
        argument = [word for word in manifests.containers(registry)[0]["args"] if word.startswith("--store=")]
        for item in (objects["CronJob", "failback-registry-backup"],
                     BUILT["restore"]["Job", "failback-registry-restore"]):
            (container,) = manifests.containers(item)
            self.assertEqual([word for word in container["args"] if word.startswith("--store=")], argument)
            # And it is neither called by the registry's Service nor held by its policy.
            self.assertFalse(selects(objects["Service", "failback-registry"]["spec"]["selector"], labels_of(item)))

    def commands(self):
        """(words) of each command line of this project's programs."""
        for _, _, item in workloads():
            for container in manifests.containers(item):
                hooks = [container.get(kind, {}) for kind in ("startupProbe", "readinessProbe", "livenessProbe")]
                hooks.append(container.get("lifecycle", {}).get("preStop", {}))
                yield container.get("command", []) + container.get("args", [])
                for hook in hooks:
                    yield hook.get("exec", {}).get("command", [])

    def test_every_flag_is_one_that_the_program_has(self):
        helps = {}
        checked = 0
        for words in self.commands():
            if not words or words[0] not in PROGRAMS:
                continue
            # Of the program, and of its command if there is one.
            callers = [(words[0],)]
            callers += [(words[0], word) for word in words[1:]
                        if word in ("backup", "restore", "health", "drain")]
            known = set()
            for caller in callers:
                if caller not in helps:
                    helps[caller] = subprocess.run([PROGRAMS[caller[0]], *caller[1:], "--help"],
                                                   capture_output=True, text=True, check=True).stdout
                known |= set(re.findall(r"--[a-z][a-z-]*", helps[caller]))
            for word in words:
                if word.startswith("--"):
                    checked += 1
                    self.assertIn(word.split("=")[0], known, words)
        self.assertGreater(checked, 30)

    def test_the_sidecar_starts_first_and_ends_last(self):
        for folder in ("app", "app-tls"):
            objects = BUILT[folder]
            spec = manifests.pod_spec(objects["Deployment", "orders"])
            (sidecar,) = spec["initContainers"]
            self.assertEqual(sidecar["restartPolicy"], "Always")
            self.assertIn("startupProbe", sidecar)
            deadline = sidecar["lifecycle"]["preStop"]["exec"]["command"][-1]
            agent = objects["ConfigMap", "orders-failback"]["data"]["agent.yaml"]
            on_signal = re.search(r"^drain_deadline: (\d+)s$", agent, re.M).group(1)
            self.assertLess(int(deadline.rstrip("s")) + int(on_signal), spec["terminationGracePeriodSeconds"])

    def test_the_image_has_what_the_manifests_start(self):
        text = read("deploy/package/image.py")
        self.assertIn("USER = 65532\n", text)
        (programs,) = re.findall(r"^PROGRAMS = (.*)$", text, re.M)
        for program in PROGRAMS:
            self.assertIn('"%s"' % program, programs)

    def test_a_store_may_be_migrated_as_long_as_under_systemd(self):
        unit = read("deploy/package/debian/failback-registry.service")
        minutes = int(re.search(r"^TimeoutStartSec=(\d+)min$", unit, re.M).group(1))
        for folder in ("registry", "registry-tls"):
            (container,) = manifests.containers(BUILT[folder]["StatefulSet", "failback-registry"])
            probe = container["startupProbe"]
            self.assertEqual(probe["periodSeconds"] * probe["failureThreshold"], minutes * 60, folder)

    def test_a_restore_deletes_the_job_of_an_earlier_one(self):
        # One that has finished would not run again, and no command would say so.
        for path in (ROOT + "/restore/kustomization.yaml", "docs/operations.md"):
            lines = read(path).split("\n")
            applied = [number for number, line in enumerate(lines) if "apply -k deploy/kubernetes/restore" in line]
            self.assertTrue(applied, path)
            for number in applied:
                self.assertIn("delete job failback-registry-restore --ignore-not-found", lines[number - 1], path)

    def test_the_image_is_of_this_version(self):
        version = subprocess.run([PROGRAMS["failbackctl"], "--version"], capture_output=True, text=True,
                                 check=True).stdout.split()[1]
        tagged = set()
        for folder in FOLDERS:
            (kustomization,) = manifests.load("%s/%s/kustomization.yaml" % (ROOT, folder))
            for image in kustomization.get("images", []):
                self.assertEqual(image, {"name": "failback", "newTag": version}, folder)
                tagged.add(folder)
        self.assertLessEqual({"app", "registry", "registry-etcd", "restore"}, tagged)
        for path in ("docs/install.md", "docs/operations.md"):
            self.assertEqual(set(re.findall(r"failback:(\d+\.\d+\.\d+)", read(path))), {version}, path)

    def test_the_page_states_what_the_manifests_say(self):
        page = read("docs/operations.md").split("\n## On Kubernetes\n")[1].split("\n## ")[0]
        for folder in BUILT:
            if folder != "base":
                self.assertIn("| `%s` |" % folder, page)
        limits = dict(re.findall(r"^\| `([a-z-]+)` \| (\d+Mi) \|", page, re.M))
        found = {container["name"]: container["resources"]["limits"]["memory"]
                 for _, _, item in workloads() for container in manifests.containers(item)
                 if container["image"].startswith("failback:")}
        self.assertEqual(limits, found)


if __name__ == "__main__":
    unittest.main()
