"""What the rules, the dashboard and the page for who is paged say, without any process."""

import glob
import json
import re
import subprocess
import unittest

import yaml

from shipped import DASHBOARD, RULES, read, rules

PROMTOOL = "/usr/bin/promtool"


class Files(unittest.TestCase):
    """What the files say, without any process."""

    def promtool(self, *args, **kwargs):
        result = subprocess.run([PROMTOOL, *args], capture_output=True, text=True, timeout=60,
                                **kwargs)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_promtool_finds_nothing_wrong(self):
        self.promtool("check", "rules", RULES)
        # Rules are found beside the configuration.
        self.promtool("check", "config", "deploy/prometheus/prometheus.yaml")

    def test_pods_are_found_by_what_the_manifests_call_things(self):
        (job,) = yaml.safe_load(read("deploy/prometheus/prometheus.kubernetes.yaml"))["scrape_configs"]
        (pattern,) = [step["regex"] for step in job["relabel_configs"]
                      if step.get("action") == "keep" and "container_port" in str(step)]
        found = set()
        for path in glob.glob("deploy/kubernetes/*/*.yaml"):
            for item in yaml.safe_load_all(read(path)):
                pod = item.get("spec", {}).get("template", {})
                for kind in ("initContainers", "containers"):
                    for container in pod.get("spec", {}).get(kind, []):
                        for port in container.get("ports", []):
                            if re.fullmatch(pattern, container["name"] + ";" + port["name"]):
                                found.add((container["name"], port["containerPort"]))
                                self.assertEqual(pod["metadata"]["annotations"], {
                                    "prometheus.io/scrape": "true",
                                    "prometheus.io/port": str(port["containerPort"])}, path)
        self.assertEqual(found, {("registry", 7071), ("failback-agent", 7061)})

    def test_alerts_fire_when_they_should_and_not_before(self):
        self.promtool("test", "rules", "rules_test.yaml", cwd="tests/daemon/metrics")

    def test_every_alert_tells_what_it_means_and_what_to_do(self):
        headings = re.findall(r"(?m)^### (Failback\w+)$", read("docs/operations.md"))
        alerts = [rule for rule in rules() if "alert" in rule]
        self.assertGreater(len(alerts), 20)
        for alert in alerts:
            name = alert["alert"]
            self.assertIn(alert["labels"]["severity"], ("page", "ticket"), name)
            self.assertEqual(set(alert["annotations"]), {"summary", "description", "runbook_url"}, name)
            self.assertEqual(alert["annotations"]["runbook_url"],
                             "docs/operations.md#" + name.lower(), name)
        self.assertEqual(headings, [alert["alert"] for alert in alerts])

    def test_links_of_the_page_lead_somewhere(self):
        page = read("docs/operations.md")
        anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
                   for heading in re.findall(r"(?m)^#+ (.*)$", page)}
        for text in (page, read("docs/metrics.md")):
            for target in re.findall(r"\]\((?:operations\.md)?#([\w-]+)\)", text):
                self.assertIn(target, anchors)

    def test_panels_do_not_overlap(self):
        taken = set()
        ids = set()
        for panel in json.loads(read(DASHBOARD))["panels"]:
            self.assertNotIn(panel["id"], ids)
            ids.add(panel["id"])
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24)
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    self.assertNotIn((x, y), taken, panel["title"])
                    taken.add((x, y))
            if panel["type"] != "row":
                self.assertTrue(panel["description"], panel["title"])


if __name__ == "__main__":
    unittest.main()
