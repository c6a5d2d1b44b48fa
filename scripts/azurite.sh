#!/usr/bin/env bash
# Runs Azurite, Microsoft's own EMULATION of Azure Blob Storage, from its npm
# package, without Docker. What passes on it has not been tried on Azure.
#
#   scripts/azurite.sh fetch
#   scripts/azurite.sh start  DIR [PORT]    the port is remembered in DIR; objects go to DIR/objects
#   scripts/azurite.sh stop   DIR           SIGTERM: it writes down what it holds
#   scripts/azurite.sh kill   DIR           SIGKILL: what it took in the last seconds may be gone
#   scripts/azurite.sh status DIR           prints up or down; exit 3 when down
#   scripts/azurite.sh pid    DIR           prints the pid of the running server, nothing when down
#
# The account is devstoreaccount1, with the key that Azurite publishes. Needs node,
# and npm for the first fetch (0.2 GB).
# Environment:
#   AZURITE_VERSION  3.35.0
#   WEIR_CACHE       where the package is kept (default: .cache of the checkout)
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 node, npm or the package missing.
set -euo pipefail

version=${AZURITE_VERSION:-3.35.0}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
lib=${WEIR_CACHE:-$root/.cache}/azurite
start_seconds=60

die() { local code=$1; shift; echo "azurite.sh: $*" >&2; exit "$code"; }
usage() { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

fetch() {
  if [ -f "$lib/.ok" ] && [ "$(cat "$lib/.ok")" = "$version" ]; then return 0; fi
  command -v npm >/dev/null || die 5 "npm is needed to fetch azurite $version"
  mkdir -p "$(dirname "$lib")"
  # Fetched next to its place and moved there whole: an interrupted fetch never
  # looks complete.
  local tmp; tmp=$(mktemp -d "$lib.fetch.XXXXXX")
  if ! npm install --prefix "$tmp" --no-save --no-audit --no-fund --ignore-scripts --loglevel error "azurite@$version" >&2; then
    rm -rf "$tmp"; die 1 "could not fetch azurite $version"
  fi
  echo "$version" >"$tmp/.ok"
  rm -rf "$lib"
  mv "$tmp" "$lib"
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
  if p=$(running); then echo "azurite.sh: already up (pid $p)"; return 0; fi
  command -v node >/dev/null || die 5 "node is needed"
  [ -f "$lib/.ok" ] || die 5 "$lib is missing: run scripts/azurite.sh fetch"
  port=${port:-$(cat "$data/port" 2>/dev/null || echo 47690)}
  if listening "$port"; then die 4 "port $port is taken by another process"; fi
  echo "$port" >"$data/port"
  mkdir -p "$data/objects"
  rm -f "$data/pid"
  # A session of its own, so that a signal to the caller's group does not reach
  # the server; the pid is written by the process that becomes it.
  local detach=(); if command -v setsid >/dev/null; then detach=(setsid); fi
  "${detach[@]}" bash -c 'echo $$ >"$0/pid.new" && mv "$0/pid.new" "$0/pid" && exec "$@"' "$data" \
    node "$lib/node_modules/azurite/dist/src/blob/main.js" --location "$data/objects" --blobHost 127.0.0.1 --blobPort "$port" --disableTelemetry --silent \
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

end_it() {
  local p tick; p=$(running) || { rm -f "$data/pid"; return 0; }
  kill "-$1" "$p" 2>/dev/null || true
  for ((tick = 0; tick < 200; tick++)); do
    if ! running >/dev/null; then rm -f "$data/pid"; return 0; fi
    sleep 0.05
  done
  die 1 "pid $p is still there 10 s after SIG$1"
}

verb=${1:-}; data=${2:-}; port=${3:-}
case "$verb" in
  fetch) fetch; exit 0 ;;
  start | stop | kill | status | pid) [ -n "$data" ] || usage ;;
  *) usage ;;
esac
if [ "$verb" = start ]; then mkdir -p "$data"; fi
data=$(cd "$data" 2>/dev/null && pwd) || { [ "$verb" = status ] && echo down; exit 3; }
case "$verb" in
  start) start ;;
  stop) end_it TERM ;;
  kill) end_it KILL ;;
  status)
    if running >/dev/null && listening "$(cat "$data/port")"; then echo up; else echo down; exit 3; fi ;;
  pid) running || true ;;
esac
