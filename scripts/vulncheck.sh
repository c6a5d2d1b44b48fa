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
# Exit codes: 0 none found, or skipped; 3 found (each with the calls that reach it).
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
# One module of the standard library, to see whether the database answers; the
# real run loads every package first, which takes a minute.
mkdir "$work/probe"
(cd "$work/probe" && printf 'module probe\n\ngo 1.24\n' >go.mod && printf 'package main\n\nfunc main() {}\n' >main.go)
code=0
(cd "$work/probe" && timeout 20 "$tool" -scan module ./... >"$work/probe.log" 2>&1) || code=$?
if [ "$code" = 124 ] || grep -qiE 'no such host|dial tcp|connection refused|i/o timeout|proxyconnect|TLS handshake|fetching vulnerabilities|HTTP (GET|status)' "$work/probe.log"; then
  skip "the vulnerability database cannot be reached: $(tail -n 1 "$work/probe.log" | cut -c1-200)"
fi
code=0
timeout "$seconds" "$tool" ./cmd/weir . || code=$?
case "$code" in
  0) echo "vulncheck.sh: none found" ;;
  3) exit 3 ;;
  124) skip "not done within $seconds seconds" ;;
  *) skip "govulncheck ended with $code" ;;
esac
