# Sourced by the scripts here that run a server for the tests. A server belongs to
# a folder: its data, its log (server.log), its pid and its port are there, so that
# any number of them run side by side, and one that was killed is told from another
# process that has its pid by now.
#
# A script sets
#   usage_lines    the lines of its own head that say how it is called: 2,9
#   default_port   where it listens unless told otherwise
#   verbs          what it can do, of: fetch version start stop kill status pid, and
#                  verbs of its own: own_VERB is called, with $port the word after the folder
# and defines
#   ours           reads a command line ($1): is it the server of $data?
#   start_server   starts it on $port, by launch and await
#   fetch          gets what it needs; only with the verb fetch
#   version        prints the server's name and version; only with the verb version
# then calls:  serve "$@"
#
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 something is missing.
# shellcheck shell=bash disable=SC2154

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
script=$(basename "$0")
cache=${WEIR_CACHE:-$root/.cache}
# stop_signal asks for a clean end, stop_seconds is how long it may take.
stop_signal=TERM
stop_seconds=60

die() { local code=$1; shift; echo "$script: $*" >&2; exit "$code"; }
usage() { sed -n "${usage_lines}s/^# \{0,1\}//p" "$0" >&2; exit 2; }

# The command line of a process, empty when there is none (a zombie has none either).
cmdline() { { tr '\0' ' ' <"/proc/$1/cmdline" || ps -ww -p "$1" -o command=; } 2>/dev/null || true; }

# The pid of OUR server: a recycled pid belongs to a process with another command line.
running() {
  local p; p=$(head -n 1 "$data/pid" 2>/dev/null) || return 1
  [ -n "$p" ] || return 1
  if ours "$(cmdline "$p")"; then echo "$p"; else return 1; fi
}

listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# take_port PORT…: these have to be free.
take_port() {
  local p; for p in "$@"; do if listening "$p"; then die 4 "port $p is taken by another process"; fi; done
}

# launch CMD…: starts it in a session of its own, so that a signal to the caller's
# group does not reach it; the pid is written by the process that becomes it.
launch() {
  rm -f "$data/pid"
  local detach=(); if command -v setsid >/dev/null; then detach=(setsid); fi
  "${detach[@]}" bash -c 'echo $$ >"$0/pid.new" && mv "$0/pid.new" "$0/pid" && exec "$@"' "$data" "$@" \
    >>"$data/server.log" 2>&1 </dev/null &
}

# await SECONDS [CMD…]: waits until the server listens, and until CMD succeeds.
await() {
  local seconds=$1 tick started=; shift
  for ((tick = 0; tick < seconds * 20; tick++)); do
    if running >/dev/null; then started=1; elif [ -n "$started" ] || [ "$tick" -gt 100 ]; then
      tail -n 20 "$data/server.log" >&2; die 1 "the server ended while it started; see $data/server.log"
    fi
    if [ -n "$started" ] && listening "$port" && { [ $# -eq 0 ] || "$@"; }; then return 0; fi
    sleep 0.05
  done
  die 1 "the server was not ready on port $port within $seconds s; see $data/server.log"
}

# gone SIGNAL SECONDS: signals the server and waits until process and socket are away.
gone() {
  local p tick; p=$(running) || { rm -f "$data/pid"; return 0; }
  kill "-$1" "$p" 2>/dev/null || true
  port=$(cat "$data/port" 2>/dev/null || echo 0)
  for ((tick = 0; tick < $2 * 20; tick++)); do
    if ! running >/dev/null && ! listening "$port"; then rm -f "$data/pid"; return 0; fi
    sleep 0.05
  done
  die 1 "pid $p is still there $2 s after SIG$1"
}

start() {
  local p
  if p=$(running); then echo "$script: already up (pid $p)"; return 0; fi
  port=${port:-$(cat "$data/port" 2>/dev/null || echo "$default_port")}
  start_server
}

# remember keeps the port for the next start; it is called when the port is ours.
remember() { echo "$port" >"$data/port"; }

serve() {
  local verb=${1:-}
  data=${2:-}; port=${3:-}
  case " $verbs " in *" $verb "*) ;; *) usage ;; esac
  case "$verb" in fetch | version) "$verb"; return ;; esac
  [ -n "$verb" ] && [ -n "$data" ] || usage
  if [ "$verb" = start ]; then mkdir -p "$data"; fi
  data=$(cd "$data" 2>/dev/null && pwd) || { if [ "$verb" = status ]; then echo down; fi; exit 3; }
  case "$verb" in
    start) start ;;
    stop) gone "$stop_signal" "$stop_seconds" ;;
    kill) gone KILL 10 ;;
    status) if running >/dev/null && listening "$(cat "$data/port")"; then echo up; else echo down; exit 3; fi ;;
    pid) running || true ;;
    *) "own_$verb" ;;
  esac
}
