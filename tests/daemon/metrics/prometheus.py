"""A Prometheus of Debian's, on a free port of loopback, with the project's rules."""

import json
import os
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from eventually import DEADLINE, eventually
from ports import reserved_address

PROMETHEUS = "/usr/bin/prometheus"
PROMTOOL = "/usr/bin/promtool"


def get(url):
    with urllib.request.urlopen(url, timeout=DEADLINE) as response:
        return response.read().decode(), response.headers


def shortened(rules):
    """The rules with every `for:` gone: what they wait for is tested with `promtool test rules`."""
    text, count = re.subn(r"(?m)^( +)for: \w+$", r"\1for: 0s", rules)
    assert count > 5
    return text


class Prometheus:
    def __init__(self, folder, targets, rules):
        """`targets`: addresses by job."""
        self.address = reserved_address()
        with open(os.path.join(folder, "rules.yaml"), "w") as file:
            file.write(shortened(rules))
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s",
                       "evaluation_interval": "500ms"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": job, "static_configs": [{"targets": addresses}]}
                               for job, addresses in targets.items()],
        }
        path = os.path.join(folder, "prometheus.yaml")
        with open(path, "w") as file:
            json.dump(config, file)  # JSON is YAML
        self.log = open(os.path.join(folder, "prometheus.log"), "w+")
        self.process = subprocess.Popen(
            [PROMETHEUS, f"--config.file={path}", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={self.address}", "--log.level=warn"],
            stdout=self.log, stderr=subprocess.STDOUT, env={"GOMAXPROCS": "2"})
        eventually(self.is_ready, "Prometheus is ready")

    def is_ready(self):
        if self.process.poll() is not None:
            self.log.seek(0)
            raise AssertionError("Prometheus has ended: " + self.log.read())
        try:
            return get(f"http://{self.address}/-/ready")
        except (urllib.error.URLError, ConnectionError):
            return None

    def api(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        try:
            body, _ = get(f"http://{self.address}/api/v1/{path}?{query}")
        except urllib.error.HTTPError as error:
            body = error.read().decode()
        answer = json.loads(body)
        if answer["status"] != "success":
            raise AssertionError(f"{path} {parameters}: {answer}")
        return answer["data"]

    def query(self, expression):
        """The result's series: labels and value."""
        return [(sample["metric"], float(sample["value"][1]))
                for sample in self.api("query", query=expression)["result"]]

    def value(self, expression):
        samples = self.query(expression)
        return samples[0][1] if len(samples) == 1 else None

    def firing(self):
        """Names of the alerts that fire, each with the labels of its series."""
        alerts = {}
        for alert in self.api("alerts")["alerts"]:
            if alert["state"] == "firing":
                alerts.setdefault(alert["labels"]["alertname"], []).append(alert)
        return alerts

    def await_firing(self, *names):
        eventually(lambda: set(names) <= set(self.firing()), f"{names} fire")

    def await_quiet(self, *names):
        eventually(lambda: not set(names) & set(self.firing()), f"{names} do not fire")

    def stop(self):
        self.process.terminate()
        self.process.wait(DEADLINE)
        self.log.close()
