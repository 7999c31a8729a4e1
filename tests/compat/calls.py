"""Calls as bytes: recorded at one version's servers, and replayed at another's.

A recording is a list of steps, each with the bytes that went over the wire:

    {"at": "registry", "call": METHOD, "request": B64, "answer": B64}      or "error": {"code", "status": B64}
    {"at": "registry", "stream": NAME, "open": METHOD}                    then, in their order,
    {"stream": NAME, "send": B64}, {"stream": NAME, "receive": B64}

They are read with the messages of the version that recorded them, as a client of that version reads them: what a
later one adds is not seen, and what it leaves out or changes is. Left out of the comparison are times, texts for
people, addresses and how long to wait. Ids that a server mints (sessions, stores, epochs, page tokens) are another server's own:
each has to be the same one wherever it was the same one, and takes its place in the requests that follow.
"""

import base64
import itertools
import queue
import threading
import time

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from programs import TIMEOUT, Failed, check

# Reads that show what goes on by itself: asked again until they say what was recorded.
SETTLES = {"List", "GetStatus", "ListPending", "ListIntents", "ListSessions", "ListAgents", "ListServices", "GetOverview"}
SETTLE_TIMEOUT = 20

MINTED = {"session_id", "store_id", "epoch", "next_page_token"}
# Where a request has them.
TAKEN = MINTED | {"page_token"}
# Texts for people, and where a server happens to be.
NOT_COMPARED = {"message", "description", "version", "host", "uri", "file",
                "failback.admin.v1.Overview.name"}
_DETAILS = {"google.rpc.ErrorInfo": "ErrorInfo", "google.rpc.BadRequest": "BadRequest",
            "google.rpc.RetryInfo": "RetryInfo"}


class Messages:
    """The messages and methods of one version, from a serialized FileDescriptorSet."""

    def __init__(self, descriptors):
        self._pool = descriptor_pool.DescriptorPool()
        self.files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        for file in self.files.file:
            self._pool.Add(file)
        self._factory = message_factory.MessageFactory(self._pool)

    def of(self, name):
        return self._factory.GetPrototype(self._pool.FindMessageTypeByName(name))

    def method(self, path):
        service, name = path[1:].split("/")
        return self._pool.FindServiceByName(service).FindMethodByName(name)

    def request(self, path):
        return self.of(self.method(path).input_type.full_name)

    def answer(self, path):
        return self.of(self.method(path).output_type.full_name)


def descriptors(modules):
    """The FileDescriptorSet of generated modules with all that they import, serialized."""
    files, seen = descriptor_pb2.FileDescriptorSet(), set()

    def add(file):
        if file.name in seen:
            return
        seen.add(file.name)
        for dependency in file.dependencies:
            add(dependency)
        file.CopyToProto(files.file.add())

    for module in modules:
        add(module.DESCRIPTOR)
    return files.SerializeToString(deterministic=True)


def b64(data):
    return base64.b64encode(data).decode()


class Targets:
    """Channels to servers by name; `addresses` gives each, and may start it."""

    def __init__(self, addresses):
        self._addresses, self._channels = addresses, {}

    def channel(self, name):
        if name not in self._channels:
            self._channels[name] = grpc.insecure_channel(self._addresses[name](), [("grpc.use_local_subchannel_pool", 1)])
        return self._channels[name]

    def close(self):
        for channel in self._channels.values():
            channel.close()

    def unary(self, at, path, request, token):
        """(answer, None) or (None, (code, status bytes))"""
        call = self.channel(at).unary_unary(path)
        try:
            return call(request, timeout=TIMEOUT, metadata=_metadata(token), wait_for_ready=True), None
        except grpc.RpcError as error:
            status = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
            return None, (error.code().value[0], status)


def _metadata(token):
    return (("authorization", f"Bearer {token}"),) if token else ()


class Stream:
    """A call with messages both ways, or from the server after one request."""

    def __init__(self, targets, at, method, path, token):
        self._requests, self._answers = queue.Queue(), queue.Queue()
        channel = targets.channel(at)
        if method.client_streaming:
            self.call = channel.stream_stream(path)(iter(self._requests.get, None), metadata=_metadata(token))
            threading.Thread(target=self._read, daemon=True).start()
        else:
            self._begin = lambda request: channel.unary_stream(path)(request, metadata=_metadata(token))
            self.call = None

    def send(self, request):
        if self.call is None:
            self.call = self._begin(request)
            threading.Thread(target=self._read, daemon=True).start()
        else:
            self._requests.put(request)

    def _read(self):
        try:
            for answer in self.call:
                self._answers.put(answer)
            self._answers.put(Failed("the stream has ended"))
        except grpc.RpcError as error:
            self._answers.put(Failed(f"the stream has ended: {error.code().name}: {error.details()}"))

    def receive(self):
        try:
            got = self._answers.get(timeout=TIMEOUT)
        except queue.Empty:
            raise Failed("the stream says nothing") from None
        if isinstance(got, Failed):
            raise got
        return got

    def end(self):
        self._requests.put(None)
        if self.call is not None:
            self.call.cancel()


class Recorder:
    """Makes calls and keeps them; `stubs` has generated modules' messages by full name."""

    def __init__(self, messages, targets):
        self.steps, self._messages, self._targets = [], messages, targets
        self._streams, self._names = {}, itertools.count(1)

    def call(self, at, path, request, until=None, token=None):
        """The answer, as the generated message `request` has a class for; a refusal's (code, reason). With `until`
        the call is made again until that holds of its answer."""
        message = self._messages.request(path).FromString(request.SerializeToString())
        sent = message.SerializeToString(deterministic=True)
        deadline = time.monotonic() + TIMEOUT
        while True:
            answer, error = self._targets.unary(at, path, sent, token)
            parsed = None if answer is None else self._messages.answer(path).FromString(answer)
            if until is None or (parsed is not None and until(parsed)):
                break
            check(time.monotonic() < deadline, path, "stays", parsed)
            time.sleep(0.05)
        step = {"at": at, "call": path, "request": b64(sent)}
        if token:
            step["token"] = token
        if error is None:
            step["answer"] = b64(answer)
        else:
            step["error"] = {"code": error[0], "status": b64(error[1])}
        self.steps.append(step)
        return parsed if error is None else error

    def open(self, at, path, token=None):
        name = f"s{next(self._names)}"
        self.steps.append({"at": at, "stream": name, "open": path, **({"token": token} if token else {})})
        self._streams[name] = (Stream(self._targets, at, self._messages.method(path), path, token), path)
        return name

    def send(self, name, request):
        stream, path = self._streams[name]
        sent = self._messages.request(path).FromString(request.SerializeToString()).SerializeToString(deterministic=True)
        stream.send(sent)
        self.steps.append({"stream": name, "send": b64(sent)})

    def receive(self, name):
        stream, path = self._streams[name]
        answer = stream.receive()
        self.steps.append({"stream": name, "receive": b64(answer)})
        return self._messages.answer(path).FromString(answer)

    def end(self):
        for stream, _ in self._streams.values():
            stream.end()


class Replayer:
    """Makes recorded calls and compares what comes back. `fixed` are minted ids that have to come back as they are;
    `free` are fields that may differ."""

    def __init__(self, messages, targets, fixed=(), free=()):
        self._free = NOT_COMPARED | set(free)
        self._messages, self._targets = messages, targets
        self._minted = {value: value for value in fixed}
        self._streams = {}

    def play(self, steps):
        try:
            for number, step in enumerate(steps, 1):
                try:
                    self._step(step)
                except Failed as failed:
                    what = step.get("call") or step.get("open") or self._streams[step["stream"]][1]
                    raise Failed(f"step {number}, {what.rsplit('/', 1)[-1]}: {failed}") from None
        finally:
            for stream, _ in self._streams.values():
                stream.end()

    def _step(self, step):
        if "open" in step:
            path = step["open"]
            self._streams[step["stream"]] = (
                Stream(self._targets, step["at"], self._messages.method(path), path, step.get("token")), path)
        elif "send" in step:
            stream, path = self._streams[step["stream"]]
            stream.send(self._request(path, step["send"]))
        elif "receive" in step:
            stream, path = self._streams[step["stream"]]
            self._compare(path, step["receive"], stream.receive())
        else:
            self._call(step)

    def _call(self, step):
        path = step["call"]
        deadline = time.monotonic() + (SETTLE_TIMEOUT if path.rsplit("/", 1)[-1] in SETTLES else 0)
        while True:
            minted = dict(self._minted)
            try:
                answer, error = self._targets.unary(step["at"], path, self._request(path, step["request"]),
                                                    step.get("token"))
                if "error" not in step:
                    check(error is None, "is refused:", error)
                    return self._compare(path, step["answer"], answer)
                check(error is not None, "is not refused:", answer)
                _same("the refusal", self._refusal(step["error"]["code"], base64.b64decode(step["error"]["status"])),
                      self._refusal(*error))
                return None
            except Failed:
                self._minted = minted
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    def _request(self, path, recorded):
        message = self._messages.request(path).FromString(base64.b64decode(recorded))
        self._put_minted(message)
        return message.SerializeToString(deterministic=True)

    def _put_minted(self, message):
        for field, value in message.ListFields():
            if field.message_type is None:
                if field.name in TAKEN and value in self._minted:
                    setattr(message, field.name, self._minted[value])
            elif not field.message_type.GetOptions().map_entry:
                for part in value if field.label == field.LABEL_REPEATED else [value]:
                    self._put_minted(part)

    def _compare(self, path, recorded, got):
        kind = self._messages.answer(path)
        recorded, got = kind.FromString(base64.b64decode(recorded)), kind.FromString(got)
        self._learn(recorded, got)
        _same("the answer", self.plain(recorded), self.plain(got))

    def _learn(self, recorded, got):
        """Pairs what was minted then with what was minted now."""
        for field, value in recorded.ListFields():
            if field.message_type is None:
                if field.name in MINTED and getattr(got, field.name):
                    check(self._minted.setdefault(value, getattr(got, field.name)) == getattr(got, field.name),
                          f"{field.name}: {value} was {self._minted[value]}, and is now {getattr(got, field.name)}")
            elif not field.message_type.GetOptions().map_entry:
                now = getattr(got, field.name)
                pairs = zip(value, now) if field.label == field.LABEL_REPEATED else [(value, now)]
                for then, part in pairs:
                    self._learn(then, part)

    def plain(self, message):
        """`message` as plain values, without what differs between two servers that do the same."""
        name = message.DESCRIPTOR.full_name
        if name == "google.protobuf.Timestamp":
            return "a time"
        if name == "failback.rpc.v1.Status":
            return self._refusal(message.code, message.SerializeToString())
        fields = {}
        for field, value in message.ListFields():
            if field.name in self._free or field.full_name in self._free:
                continue
            if field.name in MINTED:
                fields[field.name] = "minted"
            elif field.message_type is None:
                fields[field.name] = list(value) if field.label == field.LABEL_REPEATED else value
            elif field.message_type.GetOptions().map_entry:
                fields[field.name] = dict(value)
            elif field.label == field.LABEL_REPEATED:
                fields[field.name] = [self.plain(part) for part in value]
            else:
                fields[field.name] = self.plain(value)
        return fields

    def _refusal(self, code, status):
        """What a program reads of a refusal: its code, reason and fields, what metadata there is, a delay."""
        plain = {"code": code}
        for detail in self._messages.of("failback.rpc.v1.Status").FromString(status).details:
            kind = _DETAILS.get(detail.type_url.rsplit("/", 1)[-1])
            if kind is None:
                continue
            part = self._messages.of(f"failback.rpc.v1.{kind}").FromString(detail.value)
            if kind == "ErrorInfo":
                plain["reason"], plain["metadata"] = part.reason, sorted(part.metadata)
            elif kind == "BadRequest":
                plain["fields"] = [violation.field for violation in part.field_violations]
            else:
                plain["delay"] = "some"
        return plain


def _differences(then, now, path=""):
    """What is told of two plain values that differ. An error may get a reason that it had not, and more metadata."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in {**then, **now}:
            if key in ("reason", "metadata") and "code" in then and then.get("reason") is None:
                continue
            if key == "metadata" and isinstance(then.get(key), list):
                if not set(then[key]) <= set(now.get(key, [])):
                    yield f"{path}.metadata was {then[key]}, and is {now.get(key)}"
            elif then.get(key) != now.get(key):
                yield from _differences(then.get(key), now.get(key), f"{path}.{key}")
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for number, (a, b) in enumerate(zip(then, now)):
            if a != b:
                yield from _differences(a, b, f"{path}[{number}]")
    elif then != now:
        yield f"{path} was {then!r}, and is {now!r}"


def _same(what, then, now):
    differences = list(_differences(then, now))
    check(not differences, what + ":", "; ".join(differences))
