#!/usr/bin/env bash
# Runs a real S3 server (versitygw on a folder) from its Go module, without Docker.
#
#   scripts/s3.sh fetch
#   scripts/s3.sh start  DATA_DIR [PORT]    the port is remembered in DATA_DIR
#   scripts/s3.sh bucket DATA_DIR NAME      makes a bucket
#   scripts/s3.sh stop   DATA_DIR           clean shutdown
#   scripts/s3.sh kill   DATA_DIR           SIGKILL
#   scripts/s3.sh status DATA_DIR           prints up or down; exit 3 when down
#   scripts/s3.sh pid    DATA_DIR           prints the pid of the running server, nothing when down
#   scripts/s3.sh version                   prints the server's name and version
#
# Objects lie in DATA_DIR/objects/BUCKET/KEY; DATA_DIR/access.log has a line per
# request. It speaks TLS where DATA_DIR/tls.crt and DATA_DIR/tls.key are there, and
# knows more keys where DATA_DIR/iam/users.json is (versitygw's internal IAM).
# Clients need path-style addresses, region us-east-1 and the keys below.
#
# Needs go for the first fetch, and a file system with extended attributes.
# Environment:
#   VERSITYGW_VERSION                v1.8.0
#   WEIR_CACHE                       where the program is kept, in bin/ (default: .cache of the checkout)
#   S3_ACCESS_KEY_ID, S3_SECRET_ACCESS_KEY  weir-test, weir-test-secret
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 go or the program missing.
set -euo pipefail

version=${VERSITYGW_VERSION:-v1.8.0}
access=${S3_ACCESS_KEY_ID:-weir-test}
secret=${S3_SECRET_ACCESS_KEY:-weir-test-secret}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${WEIR_CACHE:-$root/.cache}/bin/versitygw
start_seconds=60
stop_seconds=30

die() { local code=$1; shift; echo "s3.sh: $*" >&2; exit "$code"; }
usage() { sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

fetch() {
  if [ -x "$bin" ] && [ "$(cat "$bin.version" 2>/dev/null)" = "$version" ]; then return 0; fi
  command -v go >/dev/null || die 5 "go is needed to build versitygw $version"
  mkdir -p "$(dirname "$bin")"
  # Built next to its place and moved there whole: an interrupted build never
  # looks complete.
  local tmp; tmp=$(mktemp -d "$bin.build.XXXXXX")
  if ! (cd "$tmp" && GOFLAGS= GOBIN="$tmp" go install -ldflags '-s -w' "github.com/versity/versitygw/cmd/versitygw@$version" >&2); then
    rm -rf "$tmp"; die 1 "could not build versitygw $version"
  fi
  mv "$tmp/versitygw" "$bin"
  echo "$version" >"$bin.version"
  rm -rf "$tmp"
}

# The command line of a process, empty when there is none (a zombie has none either).
cmdline() {
  if [ -d /proc/self ]; then
    tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null || true
  else
    ps -ww -p "$1" -o command= 2>/dev/null || true
  fi
}

# The pid of OUR server: a recycled pid belongs to a process with another
# command line.
running() {
  local p; p=$(cat "$data/pid" 2>/dev/null) || return 1
  [ -n "$p" ] || return 1
  case "$(cmdline "$p")" in *" posix $data/objects "*) echo "$p" ;; *) return 1 ;; esac
}

listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

start() {
  local p
  if p=$(running); then echo "s3.sh: already up (pid $p)"; return 0; fi
  [ -x "$bin" ] || die 5 "$bin is missing: run scripts/s3.sh fetch"
  port=${port:-$(cat "$data/port" 2>/dev/null || echo 47270)}
  if listening "$port"; then die 4 "port $port is taken by another process"; fi
  echo "$port" >"$data/port"
  mkdir -p "$data/objects"
  local tls=()
  if [ -f "$data/tls.crt" ]; then tls=(--cert "$data/tls.crt" --key "$data/tls.key"); fi
  local iam=()
  if [ -f "$data/iam/users.json" ]; then iam=(--iam-dir "$data/iam"); fi
  rm -f "$data/pid"
  # A session of its own, so that a signal to the caller's group does not reach
  # the server; the pid is written by the process that becomes it.
  local detach=(); if command -v setsid >/dev/null; then detach=(setsid); fi
  ROOT_ACCESS_KEY="$access" ROOT_SECRET_KEY="$secret" \
    "${detach[@]}" bash -c 'echo $$ >"$0/pid.new" && mv "$0/pid.new" "$0/pid" && exec "$@"' \
    "$data" "$bin" --quiet --keep-alive --port "127.0.0.1:$port" --access-log "$data/access.log" "${tls[@]}" "${iam[@]}" \
    posix "$data/objects" >>"$data/server.log" 2>&1 </dev/null &
  local tick started=
  for ((tick = 0; tick < start_seconds * 20; tick++)); do
    if running >/dev/null; then started=1; elif [ -n "$started" ] || [ "$tick" -gt 100 ]; then
      tail -n 20 "$data/server.log" >&2; die 1 "the server ended while it started; see $data/server.log"
    fi
    if [ -n "$started" ] && listening "$port"; then return 0; fi
    sleep 0.05
  done
  die 1 "the server did not listen on port $port within $start_seconds s; see $data/server.log"
}

# gone SIGNAL SECONDS: signals the server and waits until it is away.
gone() {
  local p tick; p=$(running) || { rm -f "$data/pid"; return 0; }
  kill "-$1" "$p" 2>/dev/null || true
  for ((tick = 0; tick < $2 * 20; tick++)); do
    if ! running >/dev/null; then rm -f "$data/pid"; return 0; fi
    sleep 0.05
  done
  die 1 "pid $p is still there $2 s after SIG$1"
}

verb=${1:-}; data=${2:-}; port=${3:-}
case "$verb" in
  fetch) fetch; exit 0 ;;
  version) echo "versitygw ${version#v}"; exit 0 ;;
  start | bucket | stop | kill | status | pid) [ -n "$data" ] || usage ;;
  *) usage ;;
esac
if [ "$verb" = start ]; then mkdir -p "$data"; fi
data=$(cd "$data" 2>/dev/null && pwd) || { [ "$verb" = status ] && echo down; exit 3; }
case "$verb" in
  start) start ;;
  bucket) [ -n "$port" ] || usage; mkdir -p "$data/objects/$port" ;;
  stop) gone TERM "$stop_seconds" ;;
  kill) gone KILL 10 ;;
  status)
    if running >/dev/null && listening "$(cat "$data/port")"; then echo up; else echo down; exit 3; fi ;;
  pid) running || true ;;
esac
