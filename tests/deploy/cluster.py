"""Runs the containers of a pod as processes, with exactly the command, arguments, environment, files and
probes that its manifest has. Only places are replaced: mount paths by folders, addresses by ports of
127.0.0.1."""

import os
import re
import signal
import subprocess
import time

import manifests
from eventually import DEADLINE, eventually


class Pod:
    def __init__(self, item, folder, config_maps, programs, addresses, name, uid, ip, labels,
                 secrets=None, claims=None):
        self.item = item
        self.spec = manifests.pod_spec(item)
        self.folder = folder
        self.programs = programs
        self.addresses = dict(addresses)
        self.fields = {"metadata.name": name, "metadata.uid": uid, "status.podIP": ip,
                       "metadata.namespace": item["metadata"]["namespace"]}
        for key, value in labels.items():
            self.fields["metadata.labels['%s']" % key] = value
        self.labels = dict(manifests.pod_template(item)["metadata"]["labels"], **labels)
        # Folders of volumes that several pods have, by the claim's name.
        self.claims = claims or {}
        self.processes = {}
        self.volumes = {}
        self._make_volumes(config_maps, secrets or {})

    def _make_volumes(self, config_maps, secrets):
        claims = [claim["metadata"]["name"]
                  for claim in self.item["spec"].get("volumeClaimTemplates", [])]
        volumes = [{"name": claim, "persistentVolumeClaim": {
            # A StatefulSet calls the claims of its pods so.
            "claimName": "%s-%s" % (claim, self.fields["metadata.name"])}} for claim in claims]
        volumes += self.spec.get("volumes", [])
        for volume in volumes:
            path = os.path.join(self.folder, volume["name"])
            if "persistentVolumeClaim" in volume:
                path = self.claims[volume["persistentVolumeClaim"]["claimName"]]
            os.makedirs(path, exist_ok=True)
            self.volumes[volume["name"]] = path
        for volume in volumes:
            if "configMap" in volume:
                self.publish(volume["name"], config_maps[volume["configMap"]["name"]])
            elif "secret" in volume:
                self.publish(volume["name"], secrets[volume["secret"]["secretName"]])
            elif "downwardAPI" in volume:
                files = {}
                for entry in volume["downwardAPI"]["items"]:
                    assert entry["fieldRef"]["fieldPath"] == "metadata.labels"
                    files[entry["path"]] = "".join(
                        '%s="%s"\n' % label for label in sorted(self.labels.items()))
                self.publish(volume["name"], files)
            else:
                assert "emptyDir" in volume or "persistentVolumeClaim" in volume, volume

    def publish(self, volume, files):
        """Writes a volume as the kubelet does: behind `..data`, which is swapped."""
        path = self.volumes[volume]
        generation = "..%d" % time.monotonic_ns()
        os.mkdir(os.path.join(path, generation))
        for name, text in files.items():
            with open(os.path.join(path, generation, name), "w", encoding="utf-8") as file:
                # Paths inside the files are those of the container.
                file.write(self.replace_paths(self.replace_addresses(text), self.all_mounts()))
        os.symlink(generation, os.path.join(path, "..data_tmp"))
        os.rename(os.path.join(path, "..data_tmp"), os.path.join(path, "..data"))
        for name in files:
            link = os.path.join(path, name)
            if not os.path.islink(link):
                os.symlink("..data/" + name, link)

    def all_mounts(self):
        mounts = {}
        for container in self.containers():
            for mount in container.get("volumeMounts", []):
                mounts[mount["mountPath"]] = self.volumes[mount["name"]]
        return mounts

    def containers(self):
        return self.spec.get("initContainers", []) + self.spec["containers"]

    def container(self, name):
        return next(c for c in self.containers() if c["name"] == name)

    def replace_addresses(self, text):
        for old, new in self.addresses.items():
            text = text.replace(old, new)
        return text

    @staticmethod
    def replace_paths(text, mounts):
        if not mounts:
            return text
        longest_first = sorted(mounts, key=len, reverse=True)
        return re.sub("(%s)(?=/|$)" % "|".join(map(re.escape, longest_first)),
                      lambda found: mounts[found.group()], text)

    def argv(self, words, container):
        mounts = {m["mountPath"]: self.volumes[m["name"]] for m in container.get("volumeMounts", [])}
        words = [self.replace_paths(self.replace_addresses(word), mounts) for word in words]
        return [self.programs[words[0]]] + words[1:]

    def environment(self, container):
        env = dict(os.environ)
        mounts = {m["mountPath"]: self.volumes[m["name"]] for m in container.get("volumeMounts", [])}
        for variable in container.get("env", []):
            value = variable.get("value")
            if value is None:
                value = self.fields.get(variable["valueFrom"]["fieldRef"]["fieldPath"], "")
            else:
                value = self.replace_paths(value, mounts)
            env[variable["name"]] = value
        return env

    def start(self, name):
        container = self.container(name)
        log = open(os.path.join(self.folder, name + ".log"), "ab")
        self.processes[name] = subprocess.Popen(
            self.argv(container["command"] + container.get("args", []), container),
            env=self.environment(container), stdout=log, stderr=log, cwd=self.folder)
        log.close()
        if "startupProbe" in container:
            eventually(lambda: self.probe(name, "startupProbe"), name + " starts\n" + self.log(name))

    def run(self, name):
        """A container that ends by itself."""
        container = self.container(name)
        return subprocess.run(
            self.argv(container["command"] + container.get("args", []), container),
            env=self.environment(container), capture_output=True, text=True, timeout=DEADLINE,
            check=False)

    def probe(self, name, kind):
        """One probe, as the kubelet makes it."""
        container = self.container(name)
        probe = container[kind]
        if "exec" in probe:
            words = self.argv(probe["exec"]["command"], container)
        else:
            words = [self.programs["failbackctl"], "--target",
                     self.addresses["0.0.0.0:%d" % probe["grpc"]["port"]], "health",
                     probe["grpc"].get("service", "")]
            words = [word for word in words if word]
        result = subprocess.run(words, env=self.environment(container), stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, timeout=DEADLINE, check=False)
        return result.returncode == 0

    def pre_stop(self, name):
        container = self.container(name)
        return subprocess.run(
            self.argv(container["lifecycle"]["preStop"]["exec"]["command"], container),
            env=self.environment(container), capture_output=True, text=True, timeout=DEADLINE,
            check=False)

    def stop(self, name, number=signal.SIGTERM):
        process = self.processes.pop(name)
        process.send_signal(number)
        return process.wait(self.spec["terminationGracePeriodSeconds"])

    def kill_all(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.processes.clear()

    def log(self, name):
        with open(os.path.join(self.folder, name + ".log"), encoding="utf-8") as file:
            return file.read()
