#!/usr/bin/env bash
# Runs a real schema registry without Docker: Apicurio, which speaks the API of
# Confluent's registry under /apis/ccompat/v7, from its Maven artifact. What it
# holds is in memory.
#
#   scripts/schema-registry.sh fetch
#   scripts/schema-registry.sh start  DIR [PORT]  the port is remembered in DIR
#   scripts/schema-registry.sh kill   DIR         SIGKILL
#   scripts/schema-registry.sh status DIR         prints up or down; exit 3 when down
#   scripts/schema-registry.sh pid    DIR         prints the pid of the running server, nothing when down
#
# Needs java 17 or newer, and mvn for the first fetch (140 MB).
# Environment:
#   WEIR_CACHE  where it is kept (default: .cache of the checkout)
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 java or mvn missing.
set -euo pipefail
# shellcheck source=scripts/server.sh
. "$(dirname "${BASH_SOURCE[0]}")/server.sh"

version=2.6.13.Final # of the last line that runs on Java 17
lib=$cache/apicurio-registry-$version
usage_lines=2,11
default_port=47881
verbs='fetch start kill status pid'

fetch() {
  [ -f "$lib/.ok" ] && return 0
  command -v mvn >/dev/null || die 5 "mvn is needed to fetch Apicurio $version (Maven 3.6 or newer)"
  mkdir -p "$cache"
  # Fetched next to its place and moved there whole: an interrupted fetch never
  # looks complete.
  local tmp; tmp=$(mktemp -d "$lib.fetch.XXXXXX")
  if ! mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
      -Dartifact="io.apicurio:apicurio-registry-app:$version:tar.gz:all" -DoutputDirectory="$tmp" >&2; then
    rm -rf "$tmp"; die 1 "could not fetch Apicurio $version with mvn"
  fi
  mkdir "$tmp/app"
  tar -xzf "$tmp"/*.tar.gz -C "$tmp/app"
  touch "$tmp/app/.ok"
  rm -rf "$lib"
  mv "$tmp/app" "$lib"
  rm -rf "$tmp"
}

ours() { case "$1" in *"-Dweir.data=$data "*) ;; *) return 1 ;; esac; }

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$port" && printf 'GET /apis/ccompat/v7/subjects HTTP/1.0\r\n\r\n' >&3 && head -n 1 <&3 | grep -q ' 200 ') 2>/dev/null; }

start_server() {
  command -v java >/dev/null || die 5 "java is needed (17 or newer)"
  fetch
  take_port "$port"
  remember
  launch java -Xmx512m -XX:+UseSerialGC "-Dweir.data=$data" -Dquarkus.http.host=127.0.0.1 \
    "-Dquarkus.http.port=$port" -jar "$lib/apicurio-registry-app-$version-runner.jar"
  await 180 answers
}

serve "$@"
