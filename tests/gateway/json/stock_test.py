"""Stock clients of the JSON door, through a restart of the registry: Chromium's EventSource, Prometheus' http_sd."""

import http.server
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest
import urllib.request

from eventually import DEADLINE, eventually
from json_story_test import Daemon, REGISTRY, curl
from ports import reserved_address

WATCHER = b"""<!doctype html><iframe id="page" src="/follow.html?%s"></iframe><script>
setInterval(() => {
  const page = document.getElementById('page').contentDocument;
  const items = [...page.querySelectorAll('li')].map((item) => item.textContent);
  fetch('/report', {method: 'POST', body: JSON.stringify(
      {items, state: page.getElementById('state')?.textContent})});
}, 100);
</script>"""


class Site:
    """Serves the example's page, with a frame around it that reports what it shows."""

    def __init__(self):
        site = self
        with open("examples/http/follow.html", "rb") as page:
            follow = page.read()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                path = self.path.split("?")[0]
                body = {"/": WATCHER % site.query.encode(), "/follow.html": follow}.get(path, b"")
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                site.report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.query = ""
        self.report = None
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = "http://127.0.0.1:%d" % self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class StockTest(unittest.TestCase):
    def setUp(self):
        signal.alarm(280)
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start_registry(self, *args):
        registry = Daemon(REGISTRY, "--listen", reserved_address(), "--store", f"sqlite://{self.folder}/store.db",
                          "--admin", "", "--http", reserved_address(), *args)
        self.addCleanup(registry.kill)
        return registry

    def put(self, registry, number):
        return curl(registry.http, f"/v1/services/orders/instances/{number}", "-X", "PUT",
                    body={"address": "10.0.0.7", "port": number})[0] == 200

    def start(self, *args):
        log = open(os.path.join(self.folder, os.path.basename(args[0]) + ".log"), "w")
        process = subprocess.Popen(args, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   start_new_session=True)

        def stop():
            os.killpg(process.pid, signal.SIGKILL)  # its own group, helpers of a browser included
            process.wait(DEADLINE)
            log.close()
        self.addCleanup(stop)
        return process

    def test_chromium_follows_through_a_restart(self):
        site = Site()
        self.addCleanup(site.close)
        registry = self.start_registry("--http-origins", site.origin)
        self.put(registry, 1)
        site.query = f"base=http://{registry.http}"
        self.start("/usr/bin/chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--no-first-run", f"--user-data-dir={self.folder}/chromium", "--remote-debugging-port=0",
                   site.origin + "/")
        shows = lambda *items: site.report is not None and site.report["items"] == list(items)
        eventually(lambda: shows("1 10.0.0.7:1"), "the page shows the instance")
        self.put(registry, 2)
        eventually(lambda: shows("1 10.0.0.7:1", "2 10.0.0.7:2"), "it shows a delta")
        registry.kill()
        eventually(lambda: site.report["state"] == "disconnected", "it says that it is disconnected")
        registry.start()
        eventually(lambda: self.put(registry, 3), "the registry serves again")
        eventually(lambda: shows("1 10.0.0.7:1", "2 10.0.0.7:2", "3 10.0.0.7:3"), "it goes on")

    def test_prometheus_keeps_its_targets_through_a_restart(self):
        registry = self.start_registry()
        self.put(registry, 1)
        address = reserved_address()
        config = {"scrape_configs": [{"job_name": "orders", "http_sd_configs": [
            {"url": f"http://{registry.http}/v1/prometheus?service=orders", "refresh_interval": "1s"}]}]}
        with open(f"{self.folder}/prometheus.yaml", "w") as file:
            json.dump(config, file)  # JSON is YAML
        self.start("/usr/bin/prometheus", f"--config.file={self.folder}/prometheus.yaml",
                   f"--storage.tsdb.path={self.folder}/data", f"--web.listen-address={address}", "--log.level=warn")

        def targets():
            try:
                with urllib.request.urlopen(f"http://{address}/api/v1/targets", timeout=DEADLINE) as answer:
                    found = json.load(answer)["data"]["activeTargets"]
            except OSError:
                return None
            return sorted(target["discoveredLabels"]["__address__"] for target in found)

        eventually(lambda: targets() == ["10.0.0.7:1"], "the instance is a target")
        registry.kill()
        registry.start()
        eventually(lambda: self.put(registry, 2), "the registry serves again")
        eventually(lambda: targets() == ["10.0.0.7:1", "10.0.0.7:2"], "the next one is a target too")


if __name__ == "__main__":
    unittest.main()
