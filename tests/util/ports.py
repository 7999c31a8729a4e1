"""TCP ports of 127.0.0.1 for servers that a test starts, and perhaps stops and starts again.

They are held until the test ends, by sockets that are bound and do not listen: Linux gives such a port to
nobody else, and a server that sets SO_REUSEADDR, as all do, binds and listens beside it."""

import socket

_held = []


def reserved_port():
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _held.append(holder)
    return holder.getsockname()[1]


def reserved_address():
    return "127.0.0.1:%d" % reserved_port()
