"""What must hold of the rendered chart: check_chart.py RENDERED VALUES WEIR."""
import os, subprocess, sys, tempfile

import yaml

rendered, values, weir = sys.argv[1:]
with open(rendered) as f:
    objects = [d for d in yaml.safe_load_all(f) if d]
with open(values) as f:
    given = yaml.safe_load(f)
faults = []


def want(ok, text):
    if not ok:
        faults.append(text)


def of(kind):
    return [o for o in objects if o["kind"] == kind]


groups = given.get("groups") or [{"name": "main"}]
services, secrets, configs = of("Service"), {o["metadata"]["name"] for o in of("Secret")}, {o["metadata"]["name"]: o for o in of("ConfigMap")}
want(len(of("StatefulSet")) + len(of("CronJob")) == len(groups), "not one workload for each group")
monitored = {(o["kind"], o["metadata"]["name"]) for o in objects}
want(len(monitored) == len(objects), "two objects have one name")


def check_pod(where, pod, labels, once):
    (c,) = pod["containers"]
    want(pod["terminationGracePeriodSeconds"] >= 60, f"{where}: the grace period is shorter than a batch may take")
    want(pod["automountServiceAccountToken"] is False, f"{where}: has the cluster's token")
    s = c["securityContext"]
    want(s["readOnlyRootFilesystem"] and not s["allowPrivilegeEscalation"] and s["capabilities"]["drop"] == ["ALL"], f"{where}: too many rights")
    want(pod["securityContext"]["runAsNonRoot"] is True, f"{where}: may run as root")
    volumes = {v["name"] for v in pod.get("volumes", [])}
    mounts = {m["name"] for m in c["volumeMounts"]}
    claims = {t["metadata"]["name"] for o in of("StatefulSet") if o["metadata"]["name"] == where for t in o["spec"].get("volumeClaimTemplates", [])}
    want(mounts <= volumes | claims, f"{where}: mounts {mounts - volumes - claims}, which no volume is")
    names = [e["name"] for e in c["env"]]
    want(len(names) == len(set(names)), f"{where}: a variable is set twice")
    token = next(e for e in c["env"] if e["name"] == "WEIR_STATUS_TOKEN")["valueFrom"]["secretKeyRef"]["name"]
    want(token in secrets or token == given["status"].get("existingSecret"), f"{where}: the token's secret {token} does not exist")
    for service in services:
        want(service["spec"]["selector"].items() <= labels.items(), f"{where}: the service does not select its pods")
    if not once:
        want(c["startupProbe"]["httpGet"]["path"] == c["livenessProbe"]["httpGet"]["path"] == "/livez", f"{where}: probes")
        want(c["readinessProbe"]["httpGet"]["path"] == "/readyz", f"{where}: readiness probe")
        want(c["startupProbe"]["periodSeconds"] * c["startupProbe"]["failureThreshold"] >= 150, f"{where}: is killed while it waits for a broker")
    # The command is one that the binary knows; the pipeline is one that it takes.
    (config,) = [v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v]
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "pipeline.yaml")
        with open(path, "w") as f:
            f.write(configs[config]["data"]["pipeline.yaml"])
        args = [path if a == "/etc/weir/pipeline.yaml" else a for a in c["args"]]
        env = {**os.environ, "WEIR_DATA": d, "KAFKA_BOOTSTRAP": "127.0.0.1:1", "CATALOG_URI": "sqlite:catalog.db"}
        for command in ([weir, *args, "--help"], [weir, "validate", path]):
            r = subprocess.run(command, env=env, capture_output=True, text=True)
            want(r.returncode == 0, f"{where}: {' '.join(command[1:])}: {r.stderr}")
    want(("--once" in args) == once, f"{where}: once or not")
    return c


for o in of("StatefulSet"):
    name, t = o["metadata"]["name"], o["spec"]["template"]
    want(o["spec"]["replicas"] == 1, f"{name}: more than one replica")
    want(o["spec"]["serviceName"] in [s["metadata"]["name"] for s in services], f"{name}: no governing service")
    want(o["spec"]["selector"]["matchLabels"].items() <= t["metadata"]["labels"].items(), f"{name}: selects other pods")
    check_pod(name, t["spec"], t["metadata"]["labels"], False)
for o in of("CronJob"):
    name, job = o["metadata"]["name"], o["spec"]["jobTemplate"]["spec"]
    want(o["spec"]["concurrencyPolicy"] == "Forbid", f"{name}: may run beside itself")
    t = job["template"]
    want(t["spec"]["restartPolicy"] == "Never", f"{name}: podFailurePolicy needs restartPolicy Never")
    check_pod(name, t["spec"], t["metadata"]["labels"], True)
    stops = [r["onExitCodes"]["values"] for r in job["podFailurePolicy"]["rules"] if "onExitCodes" in r]
    want(stops == [[2, 3, 4, 5, 7, 9]], f"{name}: the exit codes that need a decision are {stops}")
    claim = [v["persistentVolumeClaim"]["claimName"] for v in t["spec"]["volumes"] if "persistentVolumeClaim" in v]
    want(all(c in [p["metadata"]["name"] for p in of("PersistentVolumeClaim")] for c in claim), f"{name}: its claim does not exist")
for o in of("NetworkPolicy"):
    want(set(o["spec"]["policyTypes"]) == {"Ingress", "Egress"}, "the network policy is of one direction")
    want([{"port": 8080, "protocol": "TCP"}] == o["spec"]["ingress"][0]["ports"], "the network policy does not let the probes' port in")
for o in of("ServiceMonitor"):
    (e,) = o["spec"]["endpoints"]
    want(e["port"] in [p["name"] for s in services for p in s["spec"]["ports"]], "the service monitor's port is none of the service's")
    want(e["authorization"]["credentials"]["key"] == "token" and e["path"] == "/metrics", "the service monitor has no token")
    want(set(e) <= {"port", "path", "interval", "authorization"}, "the service monitor has a key that is not known here")
for o in of("PrometheusRule"):
    rules = [r for g in o["spec"]["groups"] for r in g["rules"]]
    want(len(rules) >= 10 and all({"alert", "expr"} <= r.keys() for r in rules), "the alert rules did not arrive")
for kind in ("serviceMonitor", "prometheusRule", "networkPolicy"):
    on = given.get(kind, {}).get("enabled", False)
    want(bool(of(kind[0].upper() + kind[1:])) == on, f"{kind}: enabled is {on}")

for f in faults:
    print(f, file=sys.stderr)
print(f"{os.path.basename(values)}: {len(objects)} objects, {len(faults)} at fault")
sys.exit(bool(faults))
