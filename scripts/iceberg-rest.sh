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
# shellcheck source=scripts/server.sh
. "$(dirname "${BASH_SOURCE[0]}")/server.sh"

version=1.9.2 # of Iceberg
source=$root/scripts/iceberg-rest/Server.java
usage_lines=2,14
default_port=47181
verbs='fetch version start stop kill status pid'
stop_seconds=30

# A copy is complete when .ok was written after the last jar.
libs() {
  local own=$cache/iceberg-rest-$version
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

ours() { case "$1" in *" Server "*" $data/catalog.db "*) ;; *) return 1 ;; esac; }

version() { echo "Iceberg's REST catalog $version"; }

start_server() {
  for tool in java javac; do command -v $tool >/dev/null || die 5 "$tool is needed (a JDK, 17 or newer)"; done
  fetch
  take_port "$port"
  mkdir -p "$data/classes" "$data/warehouse"
  if [ ! "$data/classes/Server.class" -nt "$source" ]; then
    javac -nowarn -proc:none -cp "$(libs)/*" -d "$data/classes" "$source" 2>"$data/javac.log" ||
      { cat "$data/javac.log" >&2; die 1 "could not compile $source"; }
  fi
  remember
  launch java -Xmx256m -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$data/classes:$(libs)/*" \
    Server "$port" "$data/catalog.db" "$data/warehouse" "${ICEBERG_REST_CREDENTIAL:-}"
  await 120
}

serve "$@"
