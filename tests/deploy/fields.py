"""A strict check of manifests without a cluster: each field is one that Kubernetes has (as of 1.29; `sleep` in a
hook since 1.30 by default), and each value has its type. Only fields that deploy/ uses are known: a new one is added
here, from the API reference, before it is used. What a server would take silently and ignore, a misspelt field, is
found so."""

import re

# Type: field and type; `!` after the field: required. [T]: a list; {T}: a map; a|b: one of the words.
TYPES = {}


def _read(text):
    name = None
    for line in text.splitlines():
        if line.startswith(" "):
            for word in line.split():
                field, kind = word.split(":", 1)
                TYPES[name][field.rstrip("!")] = (kind, field.endswith("!"))
        elif line:
            name = line.rstrip(":")
            TYPES[name] = {}


_read("""
Affinity:
  podAffinity:PodAffinity
Capabilities:
  drop:[ALL]
ConfigMap:
  metadata!:ObjectMeta data:{string}
ConfigMapVolumeSource:
  name!:name
Container:
  args:[string] command:[string] env:[EnvVar] image!:string lifecycle:Lifecycle livenessProbe:Probe
  name!:label ports:[ContainerPort] readinessProbe:Probe resources:ResourceRequirements
  restartPolicy:Always securityContext:SecurityContext startupProbe:Probe volumeMounts:[VolumeMount]
ContainerPort:
  containerPort!:port name:portname protocol:TCP|UDP|SCTP
CronJob:
  metadata!:ObjectMeta spec!:CronJobSpec
CronJobSpec:
  concurrencyPolicy:Allow|Forbid|Replace failedJobsHistoryLimit:number jobTemplate!:JobTemplateSpec
  schedule!:cron startingDeadlineSeconds:number successfulJobsHistoryLimit:number
Deployment:
  metadata!:ObjectMeta spec!:DeploymentSpec
DeploymentSpec:
  replicas:number selector!:LabelSelector template!:PodTemplateSpec
DownwardAPIVolumeFile:
  fieldRef!:ObjectFieldSelector path!:string
DownwardAPIVolumeSource:
  items!:[DownwardAPIVolumeFile]
EmptyDirVolumeSource:
  medium:Memory sizeLimit:quantity
EnvVar:
  name!:string value:string valueFrom:EnvVarSource
EnvVarSource:
  fieldRef!:ObjectFieldSelector
ExecAction:
  command!:[string]
GRPCAction:
  port!:port service:string
Job:
  metadata!:ObjectMeta spec!:JobSpec
JobSpec:
  activeDeadlineSeconds:number backoffLimit:number template!:PodTemplateSpec ttlSecondsAfterFinished:number
JobTemplateSpec:
  spec!:JobSpec
LabelSelector:
  matchLabels:{string}
Lifecycle:
  preStop!:LifecycleHandler
LifecycleHandler:
  exec:ExecAction sleep:SleepAction
Namespace:
  metadata!:ObjectMeta
NetworkPolicy:
  metadata!:ObjectMeta spec!:NetworkPolicySpec
NetworkPolicyEgressRule:
  ports:[NetworkPolicyPort] to:[NetworkPolicyPeer]
NetworkPolicyIngressRule:
  from:[NetworkPolicyPeer] ports:[NetworkPolicyPort]
NetworkPolicyPeer:
  namespaceSelector:LabelSelector podSelector:LabelSelector
NetworkPolicyPort:
  port!:portref protocol:TCP|UDP|SCTP
NetworkPolicySpec:
  egress:[NetworkPolicyEgressRule] ingress:[NetworkPolicyIngressRule] podSelector!:LabelSelector
  policyTypes!:[Ingress|Egress]
ObjectFieldSelector:
  fieldPath!:string
ObjectMeta:
  annotations:{string} labels:{string} name:name namespace:label
PersistentVolumeClaim:
  metadata!:ObjectMeta spec!:PersistentVolumeClaimSpec
PersistentVolumeClaimSpec:
  accessModes!:[ReadWriteOnce|ReadWriteMany|ReadOnlyMany|ReadWriteOncePod]
  resources!:VolumeResourceRequirements
PersistentVolumeClaimVolumeSource:
  claimName!:name
PodAffinity:
  requiredDuringSchedulingIgnoredDuringExecution!:[PodAffinityTerm]
PodAffinityTerm:
  labelSelector!:LabelSelector topologyKey!:string
PodDisruptionBudget:
  metadata!:ObjectMeta spec!:PodDisruptionBudgetSpec
PodDisruptionBudgetSpec:
  maxUnavailable!:number selector!:LabelSelector
PodSecurityContext:
  fsGroup:number runAsGroup:number runAsNonRoot:boolean runAsUser:number seccompProfile:SeccompProfile
PodSpec:
  affinity:Affinity automountServiceAccountToken:boolean containers!:[Container] initContainers:[Container]
  restartPolicy:Always|OnFailure|Never securityContext:PodSecurityContext
  terminationGracePeriodSeconds:number topologySpreadConstraints:[TopologySpreadConstraint] volumes:[Volume]
PodTemplateSpec:
  metadata!:ObjectMeta spec!:PodSpec
Probe:
  exec:ExecAction failureThreshold:number grpc:GRPCAction periodSeconds:number timeoutSeconds:number
ResourceRequirements:
  limits!:{quantity} requests!:{quantity}
SeccompProfile:
  type!:RuntimeDefault
SecretVolumeSource:
  secretName!:name
SecurityContext:
  allowPrivilegeEscalation:boolean capabilities:Capabilities readOnlyRootFilesystem:boolean
Service:
  metadata!:ObjectMeta spec!:ServiceSpec
ServicePort:
  appProtocol:grpc|http name!:portname port!:port protocol:TCP|UDP|SCTP targetPort!:portref
ServiceSpec:
  ports!:[ServicePort] selector!:{string}
SleepAction:
  seconds!:number
StatefulSet:
  metadata!:ObjectMeta spec!:StatefulSetSpec
StatefulSetSpec:
  replicas:number selector!:LabelSelector serviceName!:name template!:PodTemplateSpec
  volumeClaimTemplates:[PersistentVolumeClaim]
TopologySpreadConstraint:
  labelSelector!:LabelSelector maxSkew!:number topologyKey!:string
  whenUnsatisfiable!:DoNotSchedule|ScheduleAnyway
Volume:
  configMap:ConfigMapVolumeSource downwardAPI:DownwardAPIVolumeSource emptyDir:EmptyDirVolumeSource
  name!:label persistentVolumeClaim:PersistentVolumeClaimVolumeSource secret:SecretVolumeSource
VolumeMount:
  mountPath!:string name!:label readOnly:boolean
VolumeResourceRequirements:
  requests!:{quantity}
PodMonitor:
  metadata!:ObjectMeta spec!:PodMonitorSpec
PodMonitorSpec:
  namespaceSelector:MonitorNamespaces selector!:LabelSelector podMetricsEndpoints!:[Endpoint]
ServiceMonitor:
  metadata!:ObjectMeta spec!:ServiceMonitorSpec
ServiceMonitorSpec:
  jobLabel:string selector!:LabelSelector endpoints!:[Endpoint]
MonitorNamespaces:
  any:boolean
Endpoint:
  port!:portname interval:string relabelings:[Relabeling]
Relabeling:
  targetLabel!:string replacement!:string
""")

VERSIONS = {
    "v1": {"ConfigMap", "Namespace", "PersistentVolumeClaim", "Service"},
    "apps/v1": {"Deployment", "StatefulSet"},
    "batch/v1": {"CronJob", "Job"},
    "networking.k8s.io/v1": {"NetworkPolicy"},
    "policy/v1": {"PodDisruptionBudget"},
    "monitoring.coreos.com/v1": {"PodMonitor", "ServiceMonitor"},
}

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_PORT_NAME = r"(?=.{1,15}$)[a-z0-9]+(-[a-z0-9]+)*"
PATTERNS = {
    "label": _LABEL,
    "name": r"(?=.{1,253}$)%s(\.%s)*" % (_LABEL, _LABEL),
    "portname": _PORT_NAME,
    "quantity": r"[0-9]+(m|k|Ki|Mi|Gi)?",
    "cron": r"(\S+ ){4}\S+",
}


def _is_number(value, low, high):
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _scalar(kind, value):
    """Whether the value has this type, which is none of TYPES."""
    if kind == "string":
        return isinstance(value, str)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "number":
        return _is_number(value, 0, 2**31 - 1)
    if kind == "port":
        return _is_number(value, 1, 65535)
    if kind == "portref":
        return _scalar("port", value) or _scalar("portname", value)
    if kind in PATTERNS:
        return isinstance(value, str) and re.fullmatch(PATTERNS[kind], value) is not None
    return value in kind.split("|")


def problems(kind, value, path):
    """What is wrong below `path`, one line each."""
    if kind[0] in "[{":
        shape, inner = (list, kind[1:-1]) if kind[0] == "[" else (dict, kind[1:-1])
        if not isinstance(value, shape):
            return ["%s: %r is no %s" % (path, value, shape.__name__)]
        items = enumerate(value) if shape is list else value.items()
        return [p for key, item in items for p in problems(inner, item, "%s/%s" % (path, key))]
    if kind not in TYPES:
        return [] if _scalar(kind, value) else ["%s: %r is no %s" % (path, value, kind)]
    if not isinstance(value, dict):
        return ["%s: %r is no %s" % (path, value, kind)]
    found = ["%s: %s is missing" % (path, field)
             for field, (_, required) in TYPES[kind].items() if required and field not in value]
    for field, inner in value.items():
        if field in TYPES[kind]:
            found += problems(TYPES[kind][field][0], inner, "%s/%s" % (path, field))
        else:
            found.append("%s: %s has no field %s" % (path, kind, field))
    return found


def problems_of(item):
    """What is wrong with an object."""
    kind, name = item["kind"], item["metadata"]["name"]
    if kind not in VERSIONS.get(item.get("apiVersion"), ()):
        return ["%s/%s: apiVersion %r" % (kind, name, item.get("apiVersion"))]
    rest = {key: value for key, value in item.items() if key not in ("apiVersion", "kind")}
    return problems(kind, rest, "%s/%s" % (kind, name))
