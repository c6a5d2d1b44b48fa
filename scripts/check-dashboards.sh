#!/usr/bin/env bash
# Lets a real Prometheus evaluate what is in deploy/: the alert rules and their
# tests, and every expression of the dashboard and of the rules over a scrape of
# a running demo, with a proof to show, a lineage server, and an audit that
# watches beside it. An expression of the dashboard must give data; an alert must
# name only metrics that the scrape has.
#
#   scripts/check-dashboards.sh
#
# Environment:
#   WEIR_BIN         the binary (default: bin/weir)
#   WEIR_SCRAPE_FOR  seconds to scrape before the questions, from when on every
#                    kind of metric is there (default: 25)
# Exit codes: 0 all well, or skipped because Prometheus is missing (it says so);
# 1 something is wrong.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
weir=${WEIR_BIN:-$root/bin/weir}
scrape=${WEIR_SCRAPE_FOR:-25}
python=${PYTHON:-python3}

for tool in prometheus promtool; do
  if ! command -v "$tool" >/dev/null; then
    echo "check-dashboards.sh: SKIPPED: $tool is missing (Debian: apt-get install prometheus)"
    exit 0
  fi
done
[ -x "$weir" ] || { echo "check-dashboards.sh: no binary at $weir: run make build, or set WEIR_BIN" >&2; exit 1; }

promtool check rules "$root/deploy/prometheus/alerts.yaml"
promtool test rules "$root/deploy/prometheus/alerts_test.yaml"

work=$(mktemp -d)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT

# wait_for TEXT FILE: the rest of the line that has TEXT.
wait_for() {
  for _ in $(seq 300); do
    if line=$(grep -m1 -o "$1.*" "$2" 2>/dev/null); then
      echo "${line#"$1"}"
      return
    fi
    sleep 0.1
  done
  echo "check-dashboards.sh: never saw \"$1\":" >&2
  tail -20 "$2" >&2
  return 1
}

# A server that takes every lineage event.
"$python" - >"$work/lineage.log" 2>&1 <<'PY' &
import http.server


class Sink(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.end_headers()

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink)
print(f"lineage at {server.server_port}", flush=True)
server.serve_forever()
PY
pids+=($!)
lineage=$(wait_for 'lineage at ' "$work/lineage.log")

cat >"$work/proof.json" <<'JSON'
{"scenarios": [{"name": "reference", "group": "reference", "claim": "all rows", "outcome": "proved", "kills": 1}], "kills": 1,
 "about": {"weir": "dev", "started": "2026-01-01T00:00:00Z"}}
JSON

OPENLINEAGE_URL="http://127.0.0.1:$lineage" "$weir" demo --data "$work/data" --rate 1000 --listen 127.0.0.1:0 \
  --proof "$work/proof.json" >"$work/weir.log" 2>&1 &
pids+=($!)
target=$(wait_for 'status page at http://' "$work/weir.log")
target=${target%/}

# until_metric NAME: it is there, with a value.
until_metric() {
  for _ in $(seq 300); do
    if "$python" -c 'import sys, urllib.request; sys.exit(not any(l.startswith(sys.argv[2].encode()) for l in urllib.request.urlopen(f"http://{sys.argv[1]}/metrics", timeout=20)))' "$target" "$1" 2>/dev/null; then
      return
    fi
    sleep 0.5
  done
  echo "check-dashboards.sh: the demo never gave $1" >&2
  return 1
}
for metric in weir_gold_rows weir_check_passed 'weir_table_small_files{' weir_lineage_events_total; do
  until_metric "$metric"
done

kafka=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["port"])' "$work/data/kafka/broker.json")
"$weir" audit --table bronze.recentchange --topic wiki.recentchange --kafka "127.0.0.1:$kafka" --catalog "$work/data/catalog.db" \
  --watch --interval 2s --listen 127.0.0.1:0 >"$work/audit.log" 2>&1 &
pids+=($!)
audit=$(wait_for 'metrics at http://' "$work/audit.log")
audit=${audit%/metrics}

port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$work/prometheus.yml" <<YAML
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [$root/deploy/prometheus/alerts.yaml]
scrape_configs:
  - job_name: weir
    static_configs: [{targets: ["$target"]}]
  - job_name: weir-audit
    static_configs: [{targets: ["$audit"]}]
YAML
promtool check config "$work/prometheus.yml" >/dev/null
prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/tsdb" \
  --web.listen-address="127.0.0.1:$port" --log.level=warn >"$work/prometheus.log" 2>&1 &
pids+=($!)
sleep "$scrape"

"$python" - "http://127.0.0.1:$port" "$root/deploy/grafana/weir.json" <<'PY'
import json, re, sys, urllib.parse, urllib.request

prometheus, dashboard = sys.argv[1:]
faults, asked = [], 0


def ask(path, **query):
    url = f"{prometheus}{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as r:
            return json.load(r)
    except urllib.error.HTTPError as e:
        return json.load(e)


def expressions(node, where):
    """Every expression below a node of the dashboard, with where it stands."""
    if isinstance(node, dict):
        where = f"{where}/{node['title']}" if isinstance(node.get("title"), str) else where
        if isinstance(node.get("expr"), str):
            yield where, node["expr"]
        for v in node.values():
            yield from expressions(v, where)
    elif isinstance(node, list):
        for v in node:
            yield from expressions(v, where)


# Counters that come into being with the first fault.
at_fault = {"weir_audit_failures_total"}
known = set(ask("/api/v1/label/__name__/values")["data"])
with open(dashboard) as f:
    board = json.load(f)
# The interval is what Grafana would take for this scrape interval.
values = {"$instance": ".*", "$__rate_interval": "10s"}
for where, expr in expressions(board, ""):
    for name, value in values.items():
        expr = expr.replace(name, value)
    answer = ask("/api/v1/query", query=expr)
    asked += 1
    if answer["status"] != "success":
        faults.append(f"dashboard {where}: {answer.get('error')}\n    {expr}")
    elif not answer["data"]["result"] and ">" not in expr:  # an annotation shows exceptions
        faults.append(f"dashboard {where}: no data\n    {expr}")
    elif any(v["value"][1] == "NaN" for v in answer["data"]["result"]):
        faults.append(f"dashboard {where}: not a number\n    {expr}")

rules = [r for g in ask("/api/v1/rules")["data"]["groups"] for r in g["rules"]]
for rule in rules:
    asked += 1
    for name in re.findall(r"\b(?:weir_\w+|up)\b", rule["query"]):
        if name not in known and name not in at_fault:
            faults.append(f"alert {rule['name']}: nothing is called {name}")
    if rule["health"] != "ok":
        faults.append(f"alert {rule['name']}: {rule['health']} {rule.get('lastError', '')}")
    if rule["state"] == "firing":
        faults.append(f"alert {rule['name']} fires on a healthy run: {rule['alerts'][:1]}")
if len(rules) < 10:
    faults.append(f"only {len(rules)} rules were loaded")

for fault in faults:
    print(fault, file=sys.stderr)
print(f"{asked} expressions evaluated over {len(known)} metrics, {len(faults)} at fault")
sys.exit(1 if faults else 0)
PY
