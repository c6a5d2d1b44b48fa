#!/usr/bin/env bash
# Runs an EMULATION of Google Cloud Storage (fake-gcs-server) from its Go module,
# without Docker. What passes on it has not been tried on Google's own.
#
#   scripts/gcs.sh fetch
#   scripts/gcs.sh start  DIR [PORT]    the port is remembered in DIR; objects go to DIR/objects
#   scripts/gcs.sh kill   DIR           SIGKILL
#   scripts/gcs.sh status DIR           prints up or down; exit 3 when down
#   scripts/gcs.sh pid    DIR           prints the pid of the running server, nothing when down
#
# Needs go for the first fetch, and a file system with extended attributes.
# Environment:
#   FAKE_GCS_VERSION  v1.56.1
#   WEIR_CACHE        where the program is kept, in bin/ (default: .cache of the checkout)
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 go or the program missing.
set -euo pipefail

version=${FAKE_GCS_VERSION:-v1.56.1}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${WEIR_CACHE:-$root/.cache}/bin/fake-gcs-server
start_seconds=60

die() { local code=$1; shift; echo "gcs.sh: $*" >&2; exit "$code"; }
usage() { sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

fetch() {
  if [ -x "$bin" ] && [ "$(cat "$bin.version" 2>/dev/null)" = "$version" ]; then return 0; fi
  command -v go >/dev/null || die 5 "go is needed to build fake-gcs-server $version"
  mkdir -p "$(dirname "$bin")"
  # Built next to its place and moved there whole: an interrupted build never
  # looks complete.
  local tmp; tmp=$(mktemp -d "$bin.build.XXXXXX")
  if ! (cd "$tmp" && GOFLAGS= GOBIN="$tmp" go install -ldflags '-s -w' "github.com/fsouza/fake-gcs-server@$version" >&2); then
    rm -rf "$tmp"; die 1 "could not build fake-gcs-server $version"
  fi
  mv "$tmp/fake-gcs-server" "$bin"
  echo "$version" >"$bin.version"
  rm -rf "$tmp"
}

cmdline() { { tr '\0' ' ' <"/proc/$1/cmdline" || ps -ww -p "$1" -o command=; } 2>/dev/null || true; }

# The pid of OUR server: a recycled pid belongs to a process with another
# command line.
running() {
  local p; p=$(cat "$data/pid" 2>/dev/null) || return 1
  [ -n "$p" ] || return 1
  case "$(cmdline "$p")" in *" $data/objects "*) echo "$p" ;; *) return 1 ;; esac
}

listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

start() {
  local p tick started=
  if p=$(running); then echo "gcs.sh: already up (pid $p)"; return 0; fi
  [ -x "$bin" ] || die 5 "$bin is missing: run scripts/gcs.sh fetch"
  port=${port:-$(cat "$data/port" 2>/dev/null || echo 47680)}
  if listening "$port"; then die 4 "port $port is taken by another process"; fi
  echo "$port" >"$data/port"
  mkdir -p "$data/objects"
  rm -f "$data/pid"
  # A session of its own, so that a signal to the caller's group does not reach
  # the server; the pid is written by the process that becomes it.
  local detach=(); if command -v setsid >/dev/null; then detach=(setsid); fi
  "${detach[@]}" bash -c 'echo $$ >"$0/pid.new" && mv "$0/pid.new" "$0/pid" && exec "$@"' "$data" \
    "$bin" -scheme http -host 127.0.0.1 -backend filesystem -filesystem-root "$data/objects" -log-level warn -port "$port" \
    >>"$data/server.log" 2>&1 </dev/null &
  for ((tick = 0; tick < start_seconds * 20; tick++)); do
    if running >/dev/null; then started=1; elif [ -n "$started" ] || [ "$tick" -gt 100 ]; then
      tail -n 20 "$data/server.log" >&2; die 1 "the server ended while it started; see $data/server.log"
    fi
    if [ -n "$started" ] && listening "$port"; then return 0; fi
    sleep 0.05
  done
  die 1 "the server did not listen on port $port within $start_seconds s; see $data/server.log"
}

kill_it() {
  local p tick; p=$(running) || { rm -f "$data/pid"; return 0; }
  kill -KILL "$p" 2>/dev/null || true
  for ((tick = 0; tick < 200; tick++)); do
    if ! running >/dev/null; then rm -f "$data/pid"; return 0; fi
    sleep 0.05
  done
  die 1 "pid $p is still there 10 s after SIGKILL"
}

verb=${1:-}; data=${2:-}; port=${3:-}
case "$verb" in
  fetch) fetch; exit 0 ;;
  start | kill | status | pid) [ -n "$data" ] || usage ;;
  *) usage ;;
esac
if [ "$verb" = start ]; then mkdir -p "$data"; fi
data=$(cd "$data" 2>/dev/null && pwd) || { [ "$verb" = status ] && echo down; exit 3; }
case "$verb" in
  start) start ;;
  kill) kill_it ;;
  status)
    if running >/dev/null && listening "$(cat "$data/port")"; then echo up; else echo down; exit 3; fi ;;
  pid) running || true ;;
esac
