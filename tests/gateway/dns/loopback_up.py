"""Brings the loopback interface of this network up, as `ip link set lo up` does."""

import fcntl
import socket
import struct

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    request = struct.pack("16sh14s", b"lo", 0, b"")
    name, flags, rest = struct.unpack("16sh14s", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14s", name, flags | IFF_UP, rest))
