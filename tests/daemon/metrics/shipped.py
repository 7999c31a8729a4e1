"""What deploy/ ships for Prometheus and Grafana, taken apart."""

import json
import re

import yaml

RULES = "deploy/prometheus/failback.rules.yaml"
DASHBOARD = "deploy/grafana/failback.json"


def read(path):
    with open(path) as file:
        return file.read()


def rules():
    return [rule for group in yaml.safe_load(read(RULES))["groups"] for rule in group["rules"]]


def panel_expressions():
    """Title and expression of everything that the dashboard asks for."""
    dashboard = json.loads(read(DASHBOARD))
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def filled_in(expression):
    """A dashboard's expression as Grafana sends it."""
    return expression.replace("$__rate_interval", "1m").replace("$instance", ".*")


def metrics_in(expression):
    """Names of the metrics that an expression speaks of, without recorded and Prometheus's own ones."""
    without_strings = re.sub(r'"[^"]*"', '""', expression)
    return set(re.findall(r"(?<![\w:])(?:failback|process)_\w+(?![\w:])", without_strings))


def families(page):
    """Name and type of each family of a page."""
    return dict(re.findall(r"(?m)^# TYPE (\S+) (\S+)$", page))


def series_names(page):
    """Names as they are asked for: of a histogram those of its parts."""
    return set(re.findall(r"(?m)^([a-z_]+)[ {]", page))
