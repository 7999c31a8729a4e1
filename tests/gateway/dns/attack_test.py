"""An attacker without credentials, at an agent that serves other machines: floods, forged addresses, misshapen packets,
connections that dawdle. Addresses of 192.0.2.0/24 and the like are this machine's own, yet none of loopback."""

import os
import random
import resource
import select
import signal
import socket
import struct
import time
import unittest

from eventually import DEADLINE, eventually
from stock import instance, register, run, start_agent, start_registry

SERVER = ("192.0.2.1", 7063)
A, SRV = 1, 33
NAME = "many.service.failback"
# How long a question waits for a registry that says nothing (gateway/catalog/followed_set.h).
FIRST_WAIT = 2.0
SEED = int(os.environ.get("FAILBACK_SEED", random.SystemRandom().getrandbits(32)))


def query(name, kind=A, cookie=None, udp_bytes=None, number=0x1234):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    options = b"" if cookie is None else struct.pack("!HH", 10, len(cookie)) + cookie
    edns = b"" if udp_bytes is None else b"\0" + struct.pack("!HHIH", 41, udp_bytes, 0, len(options)) + options
    return struct.pack("!6H", number, 0x0100, 1, 0, 0, 1 if edns else 0) + labels + struct.pack("!2H", kind, 1) + edns


def rcode(answer):
    return answer[3] & 15


def truncated(answer):
    return bool(answer[2] & 2)


def records(answer):
    return struct.unpack("!H", answer[6:8])[0]


def udp(address="192.0.2.1"):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.bind((address, 0))
    client.connect(SERVER)
    client.settimeout(DEADLINE)
    return client


def tcp(address="192.0.2.1"):
    client = socket.socket()
    client.bind((address, 0))
    client.settimeout(DEADLINE)
    client.connect(SERVER)
    return client


def read(client, size):
    data = b""
    while len(data) < size:
        more = client.recv(size - len(data))
        if not more:
            return None
        data += more
    return data


def begin_to_ask(client, *args):
    """By TCP."""
    message = query(*args)
    client.sendall(struct.pack("!H", len(message)) + message)


def take(client):
    """The next answer; None: it was closed."""
    length = read(client, 2)
    return None if length is None else read(client, struct.unpack("!H", length)[0])


def ask(client, *args):
    begin_to_ask(client, *args)
    return take(client)


def flood(client, messages):
    """Sends all, as fast as the server takes them, and returns what came to `client`."""
    answers = []
    with tcp() as other:
        for begin in range(0, len(messages), 100):
            for message in messages[begin:begin + 100]:
                client.send(message)
            # The server has one thread: this is answered after what was sent before, and nothing is lost on the way.
            ask(other, "failback", 6)
            while select.select([client], [], [], 0)[0]:
                answers.append(client.recv(65535))
    return answers


class Attack(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print("seed", SEED)
        for network in ("192.0.2", "198.51.100", "203.0.113"):
            run("/usr/sbin/ip", "address", "add", f"{network}.1/24", "dev", "lo")
        for network in range(20):
            run("/usr/sbin/ip", "address", "add", f"10.200.{network}.1/24", "dev", "lo")

    def setUp(self):
        self.registry = start_registry()
        self.addCleanup(self.registry.stop)
        with open("/run/agent.yaml", "w") as file:
            file.write("dns: {allow_remote: true, max_connections: 32}\n")
        self.agent = start_agent("--config", "/run/agent.yaml", "--dns", "%s:%d" % SERVER)
        self.addCleanup(self.agent.stop)
        register([instance(f"m{i}", 9000 + i, f"10.1.0.{i}", service="many") for i in range(100)])
        with tcp() as client:
            eventually(lambda: records(ask(client, NAME)) == 100, "they are known")

    def test_no_answer_by_udp_is_ten_times_what_was_sent(self):
        with udp() as client:
            for kind in (A, SRV, 16, 255, 6):
                for udp_bytes in (None, 512, 1232, 4096, 65535):
                    message = query(NAME, kind, udp_bytes=udp_bytes)
                    client.send(message)
                    answer = client.recv(65535)
                    self.assertLessEqual(len(answer), 10 * len(message), (kind, udp_bytes))
            # Until the client proves its address.
            client.send(query(NAME, cookie=b"12345678", udp_bytes=1232))
            cookie = client.recv(65535)[-24:]
            client.send(query(NAME, SRV, cookie=cookie, udp_bytes=1232))
            self.assertGreater(len(client.recv(65535)), 1000)

    def test_forged_addresses_get_no_flood_and_others_their_answers(self):
        messages = [query(NAME, udp_bytes=1232, number=i) for i in range(3000)]
        begin = time.monotonic()
        with udp("198.51.100.1") as victim:
            answers = flood(victim, messages)
        seconds = time.monotonic() - begin
        whole = [answer for answer in answers if records(answer)]
        empty = [answer for answer in answers if not records(answer)]
        self.assertLessEqual(len(whole), 200 * (seconds + 1) + 1)
        self.assertTrue(all(truncated(answer) and rcode(answer) == 0 for answer in empty))
        self.assertLessEqual(len(empty), (3000 - len(whole)) // 2 + 1)
        self.assertLessEqual(sum(map(len, empty)), sum(map(len, messages)))
        # The victim itself still comes through, by TCP and with a cookie; so do others.
        with tcp("198.51.100.1") as client:
            self.assertEqual(records(ask(client, NAME)), 100)
        with udp("203.0.113.1") as client:
            client.send(query(NAME))
            self.assertTrue(records(client.recv(65535)))

    def test_a_cookie_ends_the_limit(self):
        with udp("198.51.100.1") as client:
            client.send(query(NAME, cookie=b"12345678", udp_bytes=1232))
            cookie = client.recv(65535)[-24:]
            messages = [query("nobody.failback", cookie=cookie, udp_bytes=1232, number=i) for i in range(1000)]
            answers = flood(client, messages)
            # The last may still be on their way; each of them comes.
            answers += [client.recv(65535) for _ in range(len(messages) - len(answers))]
            self.assertFalse(any(truncated(answer) for answer in answers))
            forged = cookie[:-1] + bytes([cookie[-1] ^ 1])
            answers = flood(client, [query(NAME, cookie=forged, udp_bytes=1232) for _ in range(1000)])
            self.assertTrue(any(truncated(answer) and not records(answer) for answer in answers))

    def test_made_up_names_keep_nobody_from_a_first_question(self):
        register([instance("n", 80, "10.3.0.1", service=f"new{i}") for i in range(5)])
        floods = [udp(f"10.200.{network}.1") for network in range(20)]
        self.addCleanup(lambda: [client.close() for client in floods])
        answers = []
        for network, client in enumerate(floods):
            answers += flood(client, [query(f"x{network}-{made_up}.service.failback") for made_up in range(80)])
        self.assertIn(2, map(rcode, answers), "SERVFAIL: more names than are looked at")
        with tcp("203.0.113.1") as client:
            for i in range(5):
                for made_up in range(200):
                    floods[made_up % 20].send(query(f"y{i}-{made_up}.service.failback"))
                answer = ask(client, f"new{i}.service.failback")
                self.assertEqual((rcode(answer), records(answer)), (0, 1), i)

    def test_forged_addresses_do_not_take_all_places_to_wait(self):
        self.registry.process.send_signal(signal.SIGSTOP)
        self.addCleanup(self.registry.process.send_signal, signal.SIGCONT)
        for network in range(20):
            with udp(f"10.200.{network}.1") as client:
                flood(client, [query("slow.service.failback") for _ in range(60)])
        with tcp("203.0.113.1") as client, tcp("203.0.113.1") as other:
            begun = time.monotonic()
            begin_to_ask(client, "new.service.failback")
            self.assertEqual(rcode(ask(other, "failback", 6)), 0)
            if select.select([client], [], [], 0)[0]:
                # A machine may be that slow. Without a place it is answered at once.
                self.assertGreaterEqual(time.monotonic() - begun, FIRST_WAIT, "its answer waits for the registry")

    def test_one_network_does_not_take_the_connections_of_others(self):
        with tcp("203.0.113.1") as modest:
            self.assertEqual(records(ask(modest, NAME)), 100)
            # They say nothing, dawdle, or ask all the time.
            greedy = [tcp("198.51.100.1") for _ in range(200)]
            self.addCleanup(lambda: [client.close() for client in greedy])
            for client in greedy:
                try:
                    client.sendall(b"\0")
                except OSError:
                    pass  # it had to make room
            self.assertEqual(records(ask(modest, NAME)), 100)
            with tcp() as another:
                self.assertEqual(records(ask(another, NAME)), 100)
        # All that dawdle are closed, as none has sent a query.
        for client in greedy:
            try:
                self.assertEqual(client.recv(1), b"")
            except ConnectionResetError:
                pass

    def test_who_asks_for_much_and_reads_nothing_takes_no_memory(self):
        clients = [tcp("198.51.100.1") for _ in range(32)]
        self.addCleanup(lambda: [client.close() for client in clients])
        message = query(NAME, SRV)
        pipelined = (struct.pack("!H", len(message)) + message) * 2000
        for client in clients:
            client.setblocking(False)
            try:
                client.send(pipelined)
            except BlockingIOError:
                pass
        with tcp("203.0.113.1") as client:
            self.assertEqual(records(ask(client, NAME)), 100)
        # 64,000 answers of 6 KB would be 400 MB. What has ended is counted.
        self.agent.stop()
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, 200 << 10)

    def test_misshapen_packets(self):
        rng = random.Random(SEED)
        loop = struct.pack("!6H", 1, 0, 1, 0, 0, 0) + b"\xc0\x0c" + struct.pack("!2H", A, 1)
        forward = struct.pack("!6H", 1, 0, 1, 0, 0, 0) + b"\xc0\xff" + struct.pack("!2H", A, 1)
        long_name = query(".".join(["a" * 63] * 5))
        many = struct.pack("!6H", 1, 0, 65535, 65535, 65535, 65535)
        good = query(NAME, udp_bytes=1232)
        with udp("203.0.113.1") as client:
            for message in (b"", b"\0", loop, forward, long_name, many, b"\xff" * 4000, good[:-3], good + b"\0" * 3000):
                client.send(message)
            for _ in range(5000):
                message = bytearray(good)
                for _ in range(rng.randrange(1, 6)):
                    message[rng.randrange(len(message))] = rng.randrange(256)
                client.send(bytes(message[:rng.randrange(len(message) + 1)]))
        for junk in (b"\0\0", b"\0\x0c" + b"\xff" * 12, b"\xff\xff" + b"x" * 3000, b"GET / HTTP/1.1\r\n\r\n",
                     struct.pack("!H", len(loop)) + loop):
            with tcp("203.0.113.1") as client:
                client.sendall(junk)
        with tcp() as client:
            self.assertEqual(records(ask(client, NAME)), 100)
        self.agent.check_alive()


if __name__ == "__main__":
    unittest.main()
