"""What each released version has on the wire means the same today: fields, enum values and methods are there with their
numbers, names and types, or their numbers are reserved."""

import os
import sys

from google.protobuf import descriptor_pb2

from calls import descriptors
from failback.admin.v1 import admin_pb2, offline_pb2
from failback.agent.v1 import agent_pb2
from failback.registry.v1 import registry_pb2
from failback.rpc.v1 import status_pb2

DATA = "tests/compat/data"


def messages_of(prefix, container):
    """{full name: message}, nested ones too."""
    found = {}
    for message in getattr(container, "message_type", None) or getattr(container, "nested_type", []):
        name = f"{prefix}.{message.name}"
        found[name] = message
        found.update(messages_of(name, message))
    return found


def parts(files):
    """({full name: message}, {full name: enum}, {full name: service})"""
    messages, enums, services = {}, {}, {}
    for file in files.file:
        if not file.package.startswith("failback."):
            continue
        found = messages_of(file.package, file)
        messages.update(found)
        for prefix, container in [(file.package, file), *found.items()]:
            enums.update((f"{prefix}.{enum.name}", enum) for enum in container.enum_type)
        services.update((f"{file.package}.{service.name}", service) for service in file.service)
    return messages, enums, services


def reserved(message, number):
    return any(span.start <= number < span.end for span in message.reserved_range)


def reserved_value(enum, number):
    return any(span.start <= number <= span.end for span in enum.reserved_range)


def broken(then, now):
    """What of `then` is not as it was."""
    (messages, enums, services), (messages_now, enums_now, services_now) = parts(then), parts(now)
    for name, message in messages.items():
        if name not in messages_now:
            yield f"{name} is gone"
            continue
        fields = {field.number: field for field in messages_now[name].field}
        for field in message.field:
            today = fields.get(field.number)
            if today is None:
                if not reserved(messages_now[name], field.number):
                    yield f"{name}.{field.name} is gone, and {field.number} is not reserved"
            elif ((today.name, today.type, today.label, today.type_name) !=
                  (field.name, field.type, field.label, field.type_name)):
                yield f"{name}: {field.number} was {field.name}, and is {today.name}, or is of another type"
    for name, enum in enums.items():
        values = {value.number: value.name for value in enums_now[name].value} if name in enums_now else {}
        for value in enum.value:
            if values.get(value.number) != value.name and not (
                    name in enums_now and reserved_value(enums_now[name], value.number)):
                yield f"{name}: {value.number} was {value.name}, and is {values.get(value.number)}"
    for name, service in services.items():
        methods = {m.name: m for m in services_now[name].method} if name in services_now else {}
        for method in service.method:
            if methods.get(method.name) != method:
                yield f"{name}.{method.name} was {method}, and is {methods.get(method.name)}"


def main():
    now = descriptor_pb2.FileDescriptorSet.FromString(
        descriptors([registry_pb2, agent_pb2, admin_pb2, offline_pb2, status_pb2]))
    failures, versions = 0, sorted(os.listdir(DATA))
    for version in versions:
        with open(os.path.join(DATA, version, "protos.binpb"), "rb") as file:
            then = descriptor_pb2.FileDescriptorSet.FromString(file.read())
        for what in broken(then, now):
            failures += 1
            print(f"{version}: {what}")
    return 1 if failures or not versions else 0


if __name__ == "__main__":
    sys.exit(main())
