#!/usr/bin/env bash
# Looks for known vulnerabilities in what is linked, by govulncheck. Its database
# lies in the network: where that cannot be reached the check is skipped, and says
# so; it never fails for want of a network, and never takes longer than it may.
#
#   scripts/vulncheck.sh
#
# Environment:
#   VULN_SECONDS  how long it may take in all (default: 300)
#   GOVULNDB      another database (Go's own variable)
#   WEIR_CACHE    where the tool is kept (default: .cache of the checkout)
# Exit codes: 0 none found, or skipped; 3 found (each with the calls that reach it);
# 1 the packages cannot be loaded.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${WEIR_CACHE:-$root/.cache}
version=v1.3.0
tool=$cache/bin/govulncheck-$version
seconds=${VULN_SECONDS:-300}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
skip() { echo "vulncheck.sh: SKIPPED: $*"; exit 0; }

cd "$root"
if [ ! -x "$tool" ]; then
  mkdir -p "$cache/bin"
  GOBIN="$work" timeout "$seconds" go install "golang.org/x/vuln/cmd/govulncheck@$version" 2>"$work/install.log" ||
    skip "govulncheck $version cannot be built: $(tail -n 1 "$work/install.log")"
  mv "$work/govulncheck" "$tool"
fi
network='no such host|dial tcp|connection refused|i/o timeout|proxyconnect|TLS handshake|fetching vulnerabilities'
# Modules only, first: a second's work that shows whether the database answers.
code=0
timeout 30 "$tool" -scan module >"$work/modules.log" 2>&1 || code=$?
if [ "$code" = 124 ] || grep -qE "$network" "$work/modules.log"; then
  skip "the vulnerability database cannot be reached: $(tail -n 1 "$work/modules.log" | cut -c1-200)"
fi
code=0
timeout "$seconds" "$tool" ./cmd/weir . 2>&1 | tee "$work/calls.log" || code=${PIPESTATUS[0]}
if [ "$code" = 124 ]; then skip "not done within $seconds seconds"; fi
if [ "$code" != 0 ] && [ "$code" != 3 ] && grep -qE "$network" "$work/calls.log"; then skip "the database went away"; fi
if [ "$code" = 0 ]; then echo "vulncheck.sh: none found"; fi
exit "$code"
