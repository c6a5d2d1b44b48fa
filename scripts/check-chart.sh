#!/usr/bin/env bash
# Tries the Helm chart without a cluster: helm's lint and rendering with each of
# the values of deploy/helm/ci, Kubernetes' own schemas over what comes out, and
# what must hold of it (check_chart.py). Values that are wrong must be refused.
#
#   scripts/check-chart.sh
#
# Environment:
#   WEIR_BIN    the binary, for the rendered pipelines and arguments (default: bin/weir)
#   HELM        a helm to use (default: built from its Go module into the cache, once)
#   WEIR_CACHE  where tools are kept (default: .cache of the checkout)
# Exit codes: 1 something is wrong, 5 a tool is missing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${WEIR_CACHE:-$root/.cache}
weir=${WEIR_BIN:-$root/bin/weir}
helm_version=v3.18.6
kubernetes=(1.29 1.33) # the oldest and the newest whose schemas are checked
chart=$root/deploy/helm/weir
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad() { echo "check-chart.sh: WRONG: $*" >&2; exit 1; }

[ -x "$weir" ] || { echo "check-chart.sh: no binary at $weir: make build" >&2; exit 5; }
helm=${HELM:-$cache/bin/helm-$helm_version}
if [ ! -x "$helm" ]; then
  echo "check-chart.sh: building helm $helm_version" >&2
  mkdir -p "$cache/bin"
  CGO_ENABLED=0 GOFLAGS= GOBIN="$work" go install "helm.sh/helm/v3/cmd/helm@$helm_version"
  mv "$work/helm" "$helm"
fi
python=$("$root/scripts/venv.sh" chart)
export HELM_CACHE_HOME=$work/helm-cache HELM_CONFIG_HOME=$work/helm-config HELM_DATA_HOME=$work/helm-data

cmp -s "$root/deploy/prometheus/alerts.yaml" "$chart/files/alerts.yaml" ||
  bad "deploy/helm/weir/files/alerts.yaml is not deploy/prometheus/alerts.yaml any more: copy it"

for values in "$root"/deploy/helm/ci/*.yaml; do
  name=$(basename "$values" .yaml)
  "$helm" lint --strict --quiet "$chart" -f "$values" || bad "helm lint with $name"
  for version in "${kubernetes[@]}"; do
    "$helm" template demo "$chart" --namespace data --kube-version "$version.0" -f "$values" >"$work/$name.yaml" || bad "helm template with $name"
    "$(dirname "$python")/kubernetes-validate" --strict --quiet --no-warn -k "$version" "$work/$name.yaml" || bad "$name against Kubernetes $version"
  done
  "$python" "$root/scripts/check_chart.py" "$work/$name.yaml" "$values" "$weir" || bad "$name"
done

# refused WORDS SETTING…: the schema or a template must say no.
refused() {
  local said
  if said=$("$helm" template demo "$chart" --kube-version 1.33.0 --set status.token=a-token-of-16-chars "${@:2}" 2>&1); then
    bad "accepted: ${*:2}"
  fi
  case "$said" in *"$1"*) ;; *) bad "refused ${*:2} without naming \"$1\": $said" ;; esac
}
refused "status.existingSecret or status.token" --set status.token=
refused "token" --set status.token=short
refused "replicas" --set replicas=2
refused "terminationGracePeriodSeconds" --set terminationGracePeriodSeconds=5
refused "name" --set 'groups[0].name=Not_A_Name,groups[0].pipeline=x'
refused "there twice" --set 'groups[0].name=a,groups[0].pipeline=x,groups[1].name=a,groups[1].pipeline=y'
refused "schedule" --set 'groups[0].name=a,groups[0].pipeline=x,groups[0].schedule=hourly'
refused "size" --set persistence.size=plenty
echo "check-chart.sh: all well"
