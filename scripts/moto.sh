#!/usr/bin/env bash
# Runs moto, an EMULATION of AWS Glue and S3 in memory, from its Python package
# (scripts/venv.sh moto). What passes on it has not been tried on AWS. Its Glue
# does not look at the version that an update is conditional on, so that the last
# of two racing commits wins; what it holds is gone with the process.
#
#   scripts/moto.sh start  DIR [PORT]    the port is remembered in DIR
#   scripts/moto.sh kill   DIR           SIGKILL
#   scripts/moto.sh status DIR           prints up or down; exit 3 when down
#   scripts/moto.sh pid    DIR           prints the pid of the running server, nothing when down
#
# Any keys will do. Environment:
#   WEIR_CACHE  where the environment of scripts/venv.sh is (default: .cache of the checkout)
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 moto missing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${WEIR_CACHE:-$root/.cache}/venv-moto/bin/python
start_seconds=120

die() { local code=$1; shift; echo "moto.sh: $*" >&2; exit "$code"; }
usage() { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

cmdline() { { tr '\0' ' ' <"/proc/$1/cmdline" || ps -ww -p "$1" -o command=; } 2>/dev/null || true; }

# The pid of OUR server: a recycled pid belongs to a process with another
# command line.
running() {
  local p; p=$(cat "$data/pid" 2>/dev/null) || return 1
  [ -n "$p" ] || return 1
  case "$(cmdline "$p")" in *" -c "*" $data "*) echo "$p" ;; *) return 1 ;; esac
}

listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

start() {
  local p tick started=
  if p=$(running); then echo "moto.sh: already up (pid $p)"; return 0; fi
  [ -x "$python" ] || die 5 "$python is missing: run scripts/venv.sh moto"
  port=${port:-$(cat "$data/port" 2>/dev/null || echo 47580)}
  if listening "$port"; then die 4 "port $port is taken by another process"; fi
  echo "$port" >"$data/port"
  rm -f "$data/pid"
  # A session of its own, so that a signal to the caller's group does not reach
  # the server; the pid is written by the process that becomes it.
  local detach=(); if command -v setsid >/dev/null; then detach=(setsid); fi
  "${detach[@]}" bash -c 'echo $$ >"$0/pid.new" && mv "$0/pid.new" "$0/pid" && exec "$@"' "$data" \
    "$python" -c 'import sys; from moto.server import main; main(["-H", "127.0.0.1", "-p", sys.argv[2]])' "$data" "$port" \
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
