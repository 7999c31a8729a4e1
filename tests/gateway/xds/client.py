"""A stock gRPC client in Python; what it does is told at the top of client.cc."""

import collections
import sys
import threading
import time

import grpc


class Client:

    def __init__(self, target):
        self.channel = grpc.insecure_channel(target)
        self.method = self.channel.unary_unary("/failback.examples.Orders/GetOrder")

    def call(self, deadline_ms):
        """Who served, or the status code."""
        try:
            return self.method(b"", timeout=deadline_ms / 1000)[2:].decode()
        except grpc.RpcError as error:
            print("error", error.code(), error.details(), file=sys.stderr, flush=True)
            return "error%d" % error.code().value[0]


def answer(counts):
    print("result", *("%s=%d" % item for item in sorted(counts.items())), flush=True)


def main():
    clients = {}
    background = None
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "stop":
            stop.set()
            background.join()
            answer(background_counts)
            continue
        client = clients.setdefault(words[0], None) or Client(words[0])
        clients[words[0]] = client
        if verb == "start":
            stop = threading.Event()
            background_counts = collections.Counter()

            def loop():
                while not stop.is_set():
                    background_counts[client.call(10000)] += 1
                    time.sleep(0.002)

            background = threading.Thread(target=loop, daemon=True)
            background.start()
            continue
        answer(collections.Counter(client.call(int(words[2])) for _ in range(int(words[1]))))


if __name__ == "__main__":
    main()
