#!/usr/bin/env bash
# Runs Apache Iceberg's REST catalog from its Maven artifacts, without Docker:
# the server of Iceberg's own tests over a JDBC catalog, on the loopback
# interface (scripts/iceberg-rest/Server.java). What it holds survives a kill.
#
#   scripts/iceberg-rest.sh fetch
#   scripts/iceberg-rest.sh start  DIR [PORT]  the port is remembered in DIR; tables go to DIR/warehouse
#   scripts/iceberg-rest.sh stop   DIR         SIGTERM
#   scripts/iceberg-rest.sh kill   DIR         SIGKILL
#   scripts/iceberg-rest.sh status DIR         prints up or down; exit 3 when down
#   scripts/iceberg-rest.sh pid    DIR         prints the pid of the running server, nothing when down
#   scripts/iceberg-rest.sh version            prints the server's name and version
#
# Needs java and javac 17 or newer, and mvn for the first fetch.
# Environment:
#   ICEBERG_REST_CREDENTIAL  id:secret; hand out tokens for it and ask for one (default: let everybody in)
#   WEIR_CACHE               where the jars are kept (default: .cache of the checkout; a complete
#                            copy in the user's cache is used as it is)
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 java or mvn missing.
set -euo pipefail

version=1.9.2 # of Iceberg
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source=$root/scripts/iceberg-rest/Server.java
start_seconds=120
stop_seconds=30

die() { local code=$1; shift; echo "iceberg-rest.sh: $*" >&2; exit "$code"; }
usage() { sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

# A copy is complete when .ok was written after the last jar.
libs() {
  local own=${WEIR_CACHE:-$root/.cache}/iceberg-rest-$version
  local user=${XDG_CACHE_HOME:-$HOME/.cache}/weir/iceberg-rest-$version
  if [ ! -f "$own/.ok" ] && [ -f "$user/.ok" ]; then echo "$user"; else echo "$own"; fi
}

dependency() { echo "<dependency><groupId>$1</groupId><artifactId>$2</artifactId><version>$3</version>${4:+<classifier>$4</classifier>}</dependency>"; }

fetch() {
  local dir; dir=$(libs)
  [ -f "$dir/.ok" ] && return 0
  command -v mvn >/dev/null || die 5 "mvn is needed to fetch Iceberg $version (Maven 3.6 or newer)"
  mkdir -p "$(dirname "$dir")"
  # Fetched next to its place and moved there whole: an interrupted fetch never
  # looks complete, and two fetches at once do not mix.
  local tmp; tmp=$(mktemp -d "$dir.fetch.XXXXXX")
  {
    echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    echo '<groupId>local</groupId><artifactId>iceberg-rest</artifactId><version>1</version><dependencies>'
    dependency org.apache.iceberg iceberg-core "$version"
    dependency org.apache.iceberg iceberg-core "$version" tests # the REST adapter and its servlet
    dependency org.eclipse.jetty jetty-servlet 11.0.25
    dependency org.apache.hadoop hadoop-client-api 3.4.1 # Iceberg's access to local files
    dependency org.apache.hadoop hadoop-client-runtime 3.4.1
    dependency org.xerial sqlite-jdbc 3.46.1.3
    dependency org.slf4j slf4j-simple 2.0.16
    echo '</dependencies></project>'
  } >"$tmp/pom.xml"
  if ! mvn -q -B -f "$tmp/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
      -DincludeScope=runtime -DoutputDirectory="$tmp/jars" >&2; then
    rm -rf "$tmp"; die 1 "could not fetch Iceberg $version with mvn"
  fi
  touch "$tmp/jars/.ok"
  if [ ! -f "$dir/.ok" ]; then rm -rf "$dir"; mv "$tmp/jars" "$dir"; fi
  rm -rf "$tmp"
}

cmdline() { { tr '\0' ' ' <"/proc/$1/cmdline" || ps -ww -p "$1" -o command=; } 2>/dev/null || true; }

# The pid of OUR server: a recycled pid belongs to a process with another
# command line.
running() {
  local p; p=$(cat "$data/pid" 2>/dev/null) || return 1
  [ -n "$p" ] || return 1
  case "$(cmdline "$p")" in *" Server "*" $data/catalog.db "*) echo "$p" ;; *) return 1 ;; esac
}

listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

start() {
  local p tick started=
  if p=$(running); then echo "iceberg-rest.sh: already up (pid $p)"; return 0; fi
  for tool in java javac; do command -v $tool >/dev/null || die 5 "$tool is needed (a JDK, 17 or newer)"; done
  fetch
  port=${port:-$(cat "$data/port" 2>/dev/null || echo 47181)}
  if listening "$port"; then die 4 "port $port is taken by another process"; fi
  mkdir -p "$data/classes" "$data/warehouse"
  if [ ! "$data/classes/Server.class" -nt "$source" ]; then
    javac -nowarn -proc:none -cp "$(libs)/*" -d "$data/classes" "$source" 2>"$data/javac.log" ||
      { cat "$data/javac.log" >&2; die 1 "could not compile $source"; }
  fi
  echo "$port" >"$data/port"
  rm -f "$data/pid"
  # A session of its own, so that a signal to the caller's group does not reach
  # the server; the pid is written by the process that becomes java.
  local detach=(); if command -v setsid >/dev/null; then detach=(setsid); fi
  "${detach[@]}" bash -c 'echo $$ >"$0/pid.new" && mv "$0/pid.new" "$0/pid" && exec "$@"' "$data" \
    java -Xmx256m -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$data/classes:$(libs)/*" \
    Server "$port" "$data/catalog.db" "$data/warehouse" "${ICEBERG_REST_CREDENTIAL:-}" >>"$data/server.log" 2>&1 </dev/null &
  for ((tick = 0; tick < start_seconds * 20; tick++)); do
    if running >/dev/null; then started=1; elif [ -n "$started" ] || [ "$tick" -gt 100 ]; then
      tail -n 20 "$data/server.log" >&2; die 1 "the server ended while it started; see $data/server.log"
    fi
    if [ -n "$started" ] && listening "$port"; then return 0; fi
    sleep 0.05
  done
  die 1 "the server did not listen on port $port within $start_seconds s; see $data/server.log"
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

verb=${1:-}; data=${2:-}; port=${3:-}
case "$verb" in
  fetch) fetch; libs; exit 0 ;;
  version) echo "Iceberg's REST catalog $version"; exit 0 ;;
  start | stop | kill | status | pid) [ -n "$data" ] || usage ;;
  *) usage ;;
esac
if [ "$verb" = start ]; then mkdir -p "$data"; fi
data=$(cd "$data" 2>/dev/null && pwd) || { [ "$verb" = status ] && echo down; exit 3; }
case "$verb" in
  start) start ;;
  stop) gone TERM "$stop_seconds" ;;
  kill) gone KILL 10 ;;
  status)
    if running >/dev/null && listening "$(cat "$data/port")"; then echo up; else echo down; exit 3; fi ;;
  pid) running || true ;;
esac
