"""Reads the manifests of a kustomization as `kubectl kustomize` would build them, as far as the ones
in deploy/ need: resources, components, namespace, strategic merge patches, config maps from files,
image tags."""

import os

import yaml

import fields

class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is given twice, which YAML would let win silently."""


def _unique_mapping(loader, node, deep=False):
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.YAMLError("%s is given twice in line %d" % (key, key_node.start_mark.line + 1))
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


_StrictLoader.add_constructor(
    yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def load(path):
    with open(path, encoding="utf-8") as file:
        return [document for document in yaml.load_all(file, Loader=_StrictLoader) if document]


# What tells the items of a list apart; a list without such a key is replaced as a whole.
MERGE_KEYS = {"containers": "name", "initContainers": "name", "volumes": "name", "env": "name",
              "volumeMounts": "mountPath", "ports": "name"}


def merge(base, patch):
    """A strategic merge: maps by key, null removes, lists by their items' key."""
    for key, value in patch.items():
        if value is None:
            base.pop(key, None)
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            merge(base[key], value)
        elif key in MERGE_KEYS and key in base:
            name = MERGE_KEYS[key]
            by_name = {item[name]: item for item in base[key]}
            for item in value:
                if item[name] in by_name:
                    merge(by_name[item[name]], item)
            base[key] = [item for item in value if item[name] not in by_name] + base[key]
        else:
            base[key] = value


def is_component(folder):
    return load(os.path.join(folder, "kustomization.yaml"))[0]["kind"] == "Component"


def build(folder, namespace=None):
    """All objects of a kustomization, by (kind, name); those of a component are in its user's namespace."""
    (kustomization,) = load(os.path.join(folder, "kustomization.yaml"))
    known = {"apiVersion", "kind", "namespace", "resources", "components", "images", "generatorOptions",
             "configMapGenerator", "patches"}
    assert set(kustomization) <= known, set(kustomization) - known
    assert ("namespace" in kustomization) != is_component(folder), folder
    namespace = kustomization.get("namespace", namespace)
    objects = {}
    for component in kustomization.get("components", []):
        objects.update(build(os.path.join(folder, component), namespace))
    for resource in kustomization.get("resources", []):
        path = os.path.join(folder, resource)
        if os.path.isdir(path):
            objects.update(build(path))
            continue
        for item in load(path):
            assert item["kind"] in fields.VERSIONS.get(item["apiVersion"], ()), item
            if item["kind"] != "Namespace":
                assert item["metadata"]["namespace"] == namespace, path
            objects[item["kind"], item["metadata"]["name"]] = item
    for patch in kustomization.get("patches", []):
        (item,) = load(os.path.join(folder, patch["path"]))
        merge(objects[item["kind"], item["metadata"]["name"]], item)
    for generated in kustomization.get("configMapGenerator", []):
        data = {}
        for name in generated["files"]:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                data[os.path.basename(name)] = file.read()
        objects["ConfigMap", generated["name"]] = {
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": generated["name"], "namespace": namespace},
            "data": data}
    tags = {image["name"]: image["newTag"] for image in kustomization.get("images", [])}
    for item in objects.values():
        for container in containers(item):
            if container["image"] in tags:
                container["image"] += ":" + tags[container["image"]]
    return objects


def pod_template(item):
    """Of whatever makes pods; else empty."""
    spec = item.get("spec", {})
    return spec.get("jobTemplate", {}).get("spec", spec).get("template", {})


def pod_spec(item):
    return pod_template(item).get("spec", {})


def containers(item):
    spec = pod_spec(item)
    return spec.get("initContainers", []) + spec.get("containers", [])
