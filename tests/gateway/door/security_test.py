"""Who may what through the doors for Consul and Eureka: tokens, the policy, TLS and client certificates."""

import base64
import hashlib
import json
import os
import subprocess
import unittest

from doors import Doors

SERVICE = {"Name": "orders", "ID": "o1", "Address": "10.0.0.7", "Port": 8080, "Check": {"TTL": "60s"}}
INSTANCE = {"instance": {"instanceId": "e1", "hostName": "h", "ipAddr": "10.0.0.9", "port": {"$": 8080}}}


def bearer(token):
    return {"Authorization": "Bearer " + token}


def basic(token):
    return {"Authorization": "Basic " + base64.b64encode(("any:" + token).encode()).decode()}


def consul_token(token):
    return {"X-Consul-Token": token}


class SecurityTest(Doors):
    extra = ()  # arguments of the daemons whose doors are asked

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", opener=lambda path, flags: os.open(path, flags, 0o600), encoding="utf-8") as file:
            file.write(text)
        return path

    def start_registry(self):
        names = ("writer", "reader", "other")
        tokens = self.write("tokens.yaml", "tokens:\n" + "".join(
            "- {name: %s, sha256: %s}\n" % (name, hashlib.sha256(name.encode()).hexdigest()) for name in names))
        policy = self.write("policy.yaml", """rules:
- {name: writer, tokens: [writer], allow: [register, read], namespaces: [default], services: [orders]}
- {name: reader, tokens: [reader], allow: [read], namespaces: [default], services: [orders]}
- {name: other, tokens: [other], allow: [register, read], namespaces: [default], services: [payments]}
- {name: mesh, certificates: [mesh], allow: [register, read], namespaces: [default], services: [orders]}
""")
        self.guarded = ["--known-tokens-file", tokens, "--policy-file", policy]
        # The registry serves one agent; callers are told apart at the agent.
        super().start_registry()

    def start_agent(self):
        self.agent = self.start_daemon(
            "agent/failback-agent", "--listen", self.agent_address, "--registry", "grpc://" + self.address, "--consul",
            self.consul["agent"], "--eureka", self.eureka["agent"], *self.guarded, *self.extra)

    def consul_call(self, path, method="GET", body=None, headers=None):
        return self.http(self.consul["agent"], path, method, None if body is None else json.dumps(body), headers)

    def eureka_call(self, path, method="GET", body=None, headers=None):
        return self.http(self.eureka["agent"], path, method, None if body is None else json.dumps(body),
                         dict(headers or {}, Accept="application/json"))


class TokensTest(SecurityTest):
    def test_consul(self):
        register = "/v1/agent/service/register"
        for headers in ({}, bearer("wrong"), consul_token("wrong"), basic("wrong"), consul_token("reader"),
                        bearer("other"), basic("reader")):
            status, text = self.consul_call(register, "PUT", SERVICE, headers)
            self.assertEqual(status, 403, (headers, text))
        self.assertEqual(self.ids(), [])
        for headers in (consul_token("writer"), bearer("writer"), basic("writer")):
            status, text = self.consul_call(register, "PUT", SERVICE, headers)
            self.assertEqual(status, 200, (headers, text))
        self.assertEqual(self.consul_call(register + "?token=writer", "PUT", SERVICE)[0], 200)
        # The header that is Consul's own decides, whatever a proxy adds.
        self.assertEqual(self.consul_call(register, "PUT", SERVICE, {**consul_token("writer"), **basic("reader")})[0], 200)
        self.assertEqual(self.consul_call(register, "PUT", SERVICE, {**consul_token("reader"), **basic("writer")})[0], 403)
        self.until(self.ids, ["o1"])
        # What is another's is not changed.
        for path in ("/v1/agent/check/pass/service:o1", "/v1/agent/service/maintenance/o1?enable=1",
                     "/v1/agent/service/deregister/o1", "/v1/agent/check/deregister/service:o1"):
            # As of one that is not there, by its status and words.
            for headers in ({}, consul_token("reader"), consul_token("other")):
                status, text = self.consul_call(path, "PUT", None, headers)
                self.assertEqual(status, 404, (path, headers))
                self.assertEqual((status, text.replace("o1", "o9")),
                                 self.consul_call(path.replace("o1", "o9"), "PUT", None, headers))
        # Nor taken away by a registration under its id.
        payments = {"Name": "payments", "ID": "o1", "Address": "10.0.0.7", "Port": 1}
        status, text = self.consul_call(register, "PUT", payments, consul_token("other"))
        self.assertEqual(status, 403)
        self.assertNotIn("orders", text)
        self.assertEqual(self.consul_call(register, "PUT", {**payments, "ID": "p1"}, consul_token("other"))[0], 200)
        self.until(lambda: self.ids("payments"), ["p1"])
        self.assertEqual(self.ids(), ["o1"])
        self.assertEqual(self.consul_call("/v1/agent/service/deregister/p1", "PUT", None, consul_token("other"))[0], 200)
        self.until(lambda: self.consul_call("/v1/catalog/services", headers=consul_token("other")), (200, "{}"))
        self.assertEqual(self.consul_call("/v1/agent/check/pass/service:o1", "PUT", None, consul_token("writer"))[0], 200)
        # Consul's clients may change with a GET, which a page of another site can make a browser send.
        for method in ("GET", "PUT"):
            for sign in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
                self.assertEqual(self.consul_call("/v1/agent/service/deregister/o1", method, None, {
                    **consul_token("writer"), **sign})[0], 403, (method, sign))
        self.assertEqual(self.ids(), ["o1"])
        # Reads.
        health = "/v1/health/service/orders"
        self.assertEqual(self.consul_call(health)[0], 403)
        self.assertEqual(self.consul_call(health, headers=consul_token("other"))[0], 403)
        self.until(lambda: len(json.loads(self.consul_call(health, headers=consul_token("reader"))[1])), 1)
        # Who may read nothing there has no list, and no namespace is followed for them.
        for dc in ("", "?dc=made-up"):
            for path in ("/v1/catalog/services", "/v1/catalog/nodes", "/v1/health/state/any"):
                self.assertEqual(self.consul_call(path + dc)[0], 403, path)
        self.assertEqual(self.consul_call("/v1/catalog/services?dc=made-up", headers=consul_token("reader"))[0], 403)
        for path, empty in (("/v1/catalog/services", {}), ("/v1/agent/services", {}), ("/v1/catalog/nodes", []),
                            ("/v1/health/state/any", [])):
            status, text = self.consul_call(path, headers=consul_token("other"))
            self.assertEqual((status, json.loads(text)), (200, empty), path)
            status, text = self.consul_call(path, headers=consul_token("reader"))
            self.assertEqual(status, 200, path)
            self.assertNotEqual(json.loads(text), empty, path)
        # What is not here is no way round.
        self.assertEqual(self.consul_call("/v1/kv/a", headers=consul_token("wrong"))[0], 403)
        self.assertEqual(self.consul_call("/v1/kv/a", headers=consul_token("reader"))[0], 501)
        self.assertEqual(self.consul_call("/v1/catalog/register", "PUT", {}, consul_token("reader"))[0], 501)
        self.assertEqual(self.consul_call("/v1/none", headers=consul_token("reader"))[0], 404)

    def test_eureka(self):
        apps = "/eureka/apps/ORDERS"
        for headers, expected in (({}, 401), (basic("wrong"), 401), (basic("reader"), 403), (bearer("other"), 403)):
            self.assertEqual(self.eureka_call(apps, "POST", INSTANCE, headers)[0], expected, headers)
        self.assertEqual(self.ids(), [])
        for headers in (basic("writer"), bearer("writer")):
            self.assertEqual(self.eureka_call(apps, "POST", INSTANCE, headers)[0], 204, headers)
        self.until(self.ids, ["e1"])
        # A place of Consul's clients is none here.
        self.assertEqual(self.eureka_call(apps, "POST", INSTANCE, consul_token("writer"))[0], 401)
        for method, path in (("PUT", apps + "/e1"), ("DELETE", apps + "/e1"),
                             ("PUT", apps + "/e1/status?value=OUT_OF_SERVICE")):
            for headers, expected in (({}, 401), (basic("reader"), 403), (basic("other"), 403)):
                self.assertEqual(self.eureka_call(path, method, None, headers)[0], expected, (method, path, headers))
        for path in (apps + "/e1", apps + "/e9"):
            self.assertEqual(self.eureka_call(path, "PUT", None, basic("reader"))[0], 403, path)
        self.assertEqual(self.eureka_call(apps + "/e9", "PUT", None, basic("writer"))[0], 404)
        self.assertEqual(self.eureka_call(apps + "/e1", "PUT", None, basic("writer"))[0], 200)
        # An empty registry would make a client drop what it knows.
        for path in ("/eureka/apps", "/eureka/apps/delta", apps, apps + "/e1", "/eureka/instances/e1",
                     "/eureka/vips/orders"):
            self.assertEqual(self.eureka_call(path)[0], 401, path)

        def listed(token):
            status, text = self.eureka_call("/eureka/apps", headers=basic(token))
            self.assertEqual(status, 200)
            return [application["name"] for application in json.loads(text)["applications"]["application"]]
        self.until(lambda: listed("reader"), ["ORDERS"])
        self.assertEqual(listed("other"), [])
        self.assertEqual(self.eureka_call(apps, headers=basic("other"))[0], 404, "what may not be read is not there")


class CertificatesTest(SecurityTest):
    def openssl(self, *args):
        subprocess.run(["openssl", *args], cwd=self.folder, check=True, capture_output=True)

    def start_agent(self):
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        self.openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt")
        for name, extension in (("server", "IP:127.0.0.1"), ("mesh", "DNS:mesh"), ("stranger", "DNS:stranger")):
            self.openssl("req", *key, "-subj", "/CN=" + name, "-keyout", name + ".key", "-out", name + ".csr")
            extensions = self.write(name + ".ext", "subjectAltName=" + extension)
            self.openssl("x509", "-req", "-in", name + ".csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                         "-days", "2", "-extfile", extensions, "-out", name + ".crt")
        path = lambda name: os.path.join(self.folder, name)  # noqa: E731
        self.extra = ("--tls-cert", path("server.crt"), "--tls-key", path("server.key"), "--tls-client-ca",
                      path("ca.crt"), "--tls-client-certificates", "optional")
        super().start_agent()

    def curl(self, address, target, *args, certificate=None):
        """The status; "" where there was no answer."""
        shown = [] if certificate is None else ["--cert", certificate + ".crt", "--key", certificate + ".key"]
        done = subprocess.run(["curl", "-sS", "--max-time", "30", "-o", "/dev/null", "-w", "%{http_code}", "--cacert",
                               "ca.crt", *shown, *args, "https://%s%s" % (address, target)], cwd=self.folder,
                              capture_output=True, text=True, check=False)
        return done.stdout

    def test_a_certificate_stands_for_its_owner(self):
        consul, eureka = self.consul["agent"], self.eureka["agent"]
        put = ("-X", "PUT", "-d", json.dumps(SERVICE))
        register = "/v1/agent/service/register"
        self.assertEqual(self.curl(consul, register, *put), "403")
        self.assertEqual(self.curl(consul, register, *put, certificate="stranger"), "403")
        self.assertEqual(self.curl(consul, register, *put, certificate="mesh"), "200")
        # A token that comes with the request decides.
        self.assertEqual(self.curl(consul, register, *put, "-H", "X-Consul-Token: reader", certificate="mesh"), "403")
        self.assertEqual(self.curl(consul, "/v1/health/service/orders", certificate="mesh"), "200")
        self.assertEqual(self.curl(consul, "/v1/health/service/orders", certificate="stranger"), "403")
        post = ("-X", "POST", "-H", "Content-Type: application/json", "-d", json.dumps(INSTANCE))
        self.assertEqual(self.curl(eureka, "/eureka/apps/ORDERS", *post), "401")
        self.assertEqual(self.curl(eureka, "/eureka/apps/ORDERS", *post, certificate="stranger"), "403")
        self.assertEqual(self.curl(eureka, "/eureka/apps/ORDERS", *post, certificate="mesh"), "204")
        self.until(self.ids, ["e1", "o1"])
        for address in consul, eureka:
            plain = subprocess.run(["curl", "-sS", "--max-time", "30", "http://" + address + "/v1/agent/self"],
                                   capture_output=True, check=False)
            self.assertNotEqual(plain.returncode, 0, "without TLS nothing is answered")


if __name__ == "__main__":
    unittest.main()
