#!/usr/bin/env bash
# Runs a real Postgres for the tests, on the loopback interface, with a password.
#
#   scripts/postgres.sh install            find the server's programs, install them where that is permitted
#   scripts/postgres.sh start  DIR [PORT]  the port is remembered in DIR; DIR/data is made on the first start
#   scripts/postgres.sh stop   DIR         clean shutdown
#   scripts/postgres.sh kill   DIR         SIGKILL to the server and all its processes
#   scripts/postgres.sh status DIR         prints up or down; exit 3 when down
#   scripts/postgres.sh pid    DIR         prints the pid of the running server, nothing when down
#   scripts/postgres.sh version            prints the server's name and version
#
# The superuser is "weir". As root the server runs as another user, because it
# refuses to run as root; DIR must then be reachable by that user.
# Environment:
#   PG_BIN             folder of postgres and initdb (default: the newest of Debian's, then PATH)
#   PG_USER            user to run as when started by root (default: postgres, then nobody)
#   PG_PASSWORD        password of the superuser (default: weir)
#   POSTGRES_INSTALL   no: never install anything
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 Postgres missing.
set -euo pipefail
# shellcheck source=scripts/server.sh
. "$(dirname "${BASH_SOURCE[0]}")/server.sh"

usage_lines=2,11
default_port=47132
verbs='version start stop kill status pid'
# Fast shutdown: open sessions are ended, what they committed is kept.
stop_signal=INT

# The folder of the server's programs, empty when there is none.
programs() {
  local dir
  if [ -n "${PG_BIN:-}" ]; then echo "$PG_BIN"; return; fi
  for dir in $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV); do
    if [ -x "$dir/postgres" ] && [ -x "$dir/initdb" ]; then echo "$dir"; return; fi
  done
  if command -v postgres >/dev/null && command -v initdb >/dev/null; then
    dirname "$(readlink -f "$(command -v postgres)")"
  fi
}

install() {
  bin=$(programs)
  [ -n "$bin" ] && return 0
  if [ "${POSTGRES_INSTALL:-}" = no ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    die 5 "Postgres is missing: install the server (Debian: apt-get install postgresql), or set PG_BIN"
  fi
  # Debian would make a cluster of its own and start it.
  mkdir -p /etc/postgresql-common
  [ -e /etc/postgresql-common/createcluster.conf ] || echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
      -o Dpkg::Options::=--force-confold postgresql; } >&2 || die 5 "apt-get could not install postgresql"
  bin=$(programs)
  [ -n "$bin" ] || die 5 "postgresql was installed and its programs were not found"
}

# as_user CMD…: prints nothing, becomes CMD under a user that the server accepts.
as_user=()
choose_user() {
  [ "$(id -u)" = 0 ] || return 0
  local user=${PG_USER:-}
  if [ -z "$user" ]; then
    if id postgres >/dev/null 2>&1; then user=postgres; else user=nobody; fi
  fi
  command -v setpriv >/dev/null || die 5 "setpriv is missing (Debian: util-linux): root cannot run Postgres without it"
  as_user=(setpriv "--reuid=$(id -u "$user")" "--regid=$(id -g "$user")" --clear-groups)
  chown "$user" "$data"
}

ours() { case "$1" in *"postgres -D $data/data "*) ;; *) return 1 ;; esac; }

initialise() {
  [ -f "$data/data/PG_VERSION" ] && return 0
  local pw; pw=$(mktemp "$data/.pw.XXXXXX")
  printf '%s\n' "${PG_PASSWORD:-weir}" >"$pw"
  [ ${#as_user[@]} -eq 0 ] || chown "$(stat -c %U "$data")" "$pw"
  rm -rf "$data/data"
  if ! (cd "$data" && "${as_user[@]}" "$bin/initdb" -D "$data/data" -U weir --pwfile="$pw" -A scram-sha-256 \
      -E UTF8 --locale=C --no-instructions) >"$data/initdb.log" 2>&1; then
    rm -f "$pw"; cat "$data/initdb.log" >&2; die 1 "could not make $data/data"
  fi
  rm -f "$pw"
}

# It listens before it serves; "ready" stands in its own lock file.
ready() { grep -q '^ready' "$data/data/postmaster.pid" 2>/dev/null; }

start_server() {
  install
  choose_user
  take_port "$port"
  initialise
  remember
  (cd "$data" && launch "${as_user[@]}" "$bin/postgres" -D "$data/data" -p "$port" -c listen_addresses=127.0.0.1 \
    -c unix_socket_directories= -c max_connections=60 -c shared_buffers=32MB -c log_min_messages=warning)
  await 60 ready
}

# gone SIGNAL SECONDS: signals the server and waits until it and its processes
# are away: one that lives on would hold the shared memory against a restart.
gone() {
  local p tick children; p=$(running) || { rm -f "$data/pid"; return 0; }
  children=$(ps -o pid= --ppid "$p" 2>/dev/null || true)
  if [ "$1" = KILL ]; then
    # shellcheck disable=SC2086 # a list of pids
    kill -KILL "$p" $children 2>/dev/null || true
  else
    kill "-$1" "$p" 2>/dev/null || true
  fi
  port=$(cat "$data/port" 2>/dev/null || echo 0)
  for ((tick = 0; tick < $2 * 20; tick++)); do
    local left=
    for c in $p $children; do if [ -n "$(cmdline "$c")" ]; then left=$c; fi; done
    if [ -z "$left" ] && ! listening "$port"; then
      rm -f "$data/pid"
      # Nobody may have reaped the server yet, and its successor would take the
      # dead one for a living one.
      if [ "$1" = KILL ]; then rm -f "$data/data/postmaster.pid"; fi
      return 0
    fi
    sleep 0.05
  done
  die 1 "pid $p or a process of it is still there $2 s after SIG$1"
}

version() { install; local v; v=$("$bin/postgres" --version); echo "PostgreSQL ${v##*PostgreSQL) }"; }

if [ "${1:-}" = install ]; then install; echo "$bin"; exit 0; fi
serve "$@"
