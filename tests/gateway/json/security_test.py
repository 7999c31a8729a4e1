"""Who may what at the JSON door: TLS, client certificates, tokens, tickets, a policy that changes, other sites."""

import hashlib
import os
import signal
import subprocess
import tempfile
import unittest
import urllib.parse

from eventually import eventually
from json_story_test import Daemon, REGISTRY, Stream, curl, ids
from ports import reserved_address

PATH = "/v1/services/orders/instances/1"
BODY = {"address": "h", "port": 1}


class SecurityTest(unittest.TestCase):
    def setUp(self):
        signal.alarm(280)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        digests = "".join(f"- {{name: {name}, sha256: {hashlib.sha256(name.encode()).hexdigest()}}}\n"
                          for name in ("writer", "reader"))
        self.write("tokens.yaml", "tokens:\n" + digests)
        self.allow("orders")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text)

    def allow(self, readable):
        self.write("policy.yaml", f"""rules:
- {{name: writer, tokens: [writer], allow: [register], namespaces: [default], services: [orders]}}
- {{name: reader, tokens: [reader], allow: [read], namespaces: [default], services: [{readable}]}}
- {{name: mesh, certificates: [mesh], allow: [read, register], namespaces: "*", services: "*"}}
""")

    def start(self, *args):
        registry = Daemon(REGISTRY, "--listen", reserved_address(), "--store", "memory:", "--admin", "",
                          "--http", reserved_address(), "--known-tokens-file", self.path("tokens.yaml"),
                          "--policy-file", self.path("policy.yaml"), *args)
        self.addCleanup(registry.kill)
        return registry

    def as_token(self, name):
        return ["-H", f"Authorization: Bearer {name}"]

    def refused(self, answer):
        status, problem, headers = answer
        self.assertEqual(headers["content-type"], "application/problem+json", problem)
        return status, problem["reason"]

    def test_tokens_and_the_policy(self):
        registry = self.start()
        http = registry.http
        self.assertEqual(self.refused(curl(http, PATH, "-X", "PUT", body=BODY)), (401, "CREDENTIALS_NEEDED"))
        status, problem, headers = curl(http, PATH, "-X", "PUT", *self.as_token("wrong"), body=BODY)
        self.assertEqual((status, headers["www-authenticate"]), (401, "Bearer"), problem)
        self.assertEqual(self.refused(curl(http, PATH, "-X", "PUT", *self.as_token("reader"), body=BODY)),
                         (403, "ACCESS_DENIED"))
        # Nor does what was refused keep the key from those who may.
        self.assertEqual(self.refused(curl(http, PATH + "?ttl=60s", "-X", "PUT", *self.as_token("reader"), body=BODY)),
                         (403, "ACCESS_DENIED"))
        self.assertEqual(curl(http, PATH + "?ttl=60s", "-X", "PUT", *self.as_token("writer"), body=BODY)[0], 200)
        self.assertEqual(self.refused(curl(http, "/v1/services/orders", *self.as_token("writer"))),
                         (403, "ACCESS_DENIED"))
        self.assertEqual(ids(curl(http, "/v1/services/orders", *self.as_token("reader"))[1]), ["1"])
        self.assertEqual(self.refused(curl(http, PATH + "/renew", "-X", "POST", *self.as_token("reader"))),
                         (403, "ACCESS_DENIED"))
        self.assertEqual(curl(http, PATH + "/renew", "-X", "POST", *self.as_token("writer"))[0], 200)
        (target,) = curl(http, "/v1/prometheus", *self.as_token("reader"))[1]
        self.assertEqual(target["targets"], ["h:1"])

    def test_a_stream_ends_when_the_policy_does_not_allow_it_any_more(self):
        registry = self.start("--reload-interval", "50ms")
        curl(registry.http, PATH, "-X", "PUT", *self.as_token("writer"), body=BODY)
        stream = Stream(registry.http, "/v1/services/orders", *self.as_token("reader"))
        self.addCleanup(stream.close)
        self.assertEqual(stream.event()[0], "snapshot")
        self.allow("payments")
        registry.process.send_signal(signal.SIGHUP)
        eventually(lambda: curl(registry.http, "/v1/services/orders", *self.as_token("reader"))[0] == 403, "it is denied")
        # A change is not shown to it: the stream ends instead.
        curl(registry.http, PATH, "-X", "DELETE", *self.as_token("writer"))
        with self.assertRaisesRegex(AssertionError, "has ended"):
            stream.event()

    def test_a_ticket_stands_for_its_caller_and_its_path(self):
        http = self.start().http
        curl(http, PATH, "-X", "PUT", *self.as_token("writer"), body=BODY)
        status, ticket, _ = curl(http, "/v1/tickets", *self.as_token("reader"), body={"path": "/v1/services/orders"})
        self.assertEqual(status, 200, ticket)
        shown = "?ticket=" + urllib.parse.quote(ticket["ticket"])
        stream = Stream(http, "/v1/services/orders" + shown)
        self.addCleanup(stream.close)
        self.assertEqual(ids(stream.event()[2]), ["1"])
        for target in ("/v1/services" + shown, "/v1/services/orders?ticket=x", "/v1/services/payments" + shown):
            self.assertEqual(self.refused(curl(http, target)), (401, "CREDENTIALS_NEEDED"), target)
        # Nothing is changed with one.
        self.assertEqual(self.refused(curl(http, PATH + shown, "-X", "PUT", body=BODY))[0], 401)

    def test_other_sites_are_answered_when_they_are_configured(self):
        site = "https://console.example"
        http = self.start("--http-origins", site).http
        status, _, headers = curl(http, PATH, "-X", "OPTIONS", "-H", f"Origin: {site}",
                                  "-H", "Access-Control-Request-Method: PUT")
        self.assertEqual((status, headers["access-control-allow-origin"]), (204, site))
        self.assertIn("PUT", headers["access-control-allow-methods"])
        status, _, headers = curl(http, PATH, "-X", "PUT", "-H", f"Origin: {site}", "-H", "Sec-Fetch-Site: cross-site",
                                  *self.as_token("writer"), body=BODY)
        self.assertEqual((status, headers["access-control-allow-origin"]), (200, site))
        stream = subprocess.run(["curl", "-sN", "--max-time", "2", "-D", "-", "-H", f"Origin: {site}",
                                 "-H", "Accept: text/event-stream", *self.as_token("reader"),
                                 f"http://{http}/v1/services/orders"], capture_output=True, text=True, check=False)
        self.assertIn(f"Access-Control-Allow-Origin: {site}", stream.stdout)
        status, problem, headers = curl(http, PATH, "-X", "PUT", "-H", "Origin: https://evil.example",
                                        *self.as_token("writer"), body=BODY)
        self.assertEqual((status, problem["reason"]), (403, "ACCESS_DENIED"))
        self.assertNotIn("access-control-allow-origin", headers)

    def test_tls_and_client_certificates(self):
        def openssl(*args):
            subprocess.run(["openssl", *args], cwd=self.folder, check=True, capture_output=True)
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt")
        for name, extension in (("server", "subjectAltName=IP:127.0.0.1"), ("mesh", "subjectAltName=DNS:mesh")):
            openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                    "-keyout", f"{name}.key", "-out", f"{name}.csr")
            self.write(f"{name}.ext", extension)
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                    "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.crt")
        registry = self.start("--tls-cert", self.path("server.crt"), "--tls-key", self.path("server.key"),
                              "--tls-client-ca", self.path("ca.crt"), "--tls-client-certificates", "optional")

        def secure(path, *args):
            result = subprocess.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--cacert",
                                     self.path("ca.crt"), *args, f"https://{registry.http}{path}"],
                                    capture_output=True, text=True, check=False)
            return result.stdout
        mesh = ["--cert", self.path("mesh.crt"), "--key", self.path("mesh.key")]
        put = ["-X", "PUT", "-d", '{"address": "h", "port": 1}']
        self.assertEqual(secure(PATH, *put), "401")
        self.assertEqual(secure(PATH, *put, *mesh), "200")
        self.assertEqual(secure("/v1/services/orders", *mesh), "200")
        self.assertEqual(secure("/v1/services/orders", *self.as_token("reader")), "200")
        # A token that comes with a request decides, as it is the program's own.
        self.assertEqual(secure(PATH, *put, *mesh, *self.as_token("reader")), "403")
        # Without TLS nothing is answered.
        plain = subprocess.run(["curl", "-sS", "--max-time", "10", f"http://{registry.http}/v1/services"],
                               capture_output=True, check=False)
        self.assertNotEqual(plain.returncode, 0)


if __name__ == "__main__":
    unittest.main()
