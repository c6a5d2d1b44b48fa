#!/usr/bin/env bash
# Runs a real Apache Cassandra (one node) from its Maven artifacts, without Docker.
#
#   scripts/cassandra.sh fetch
#   scripts/cassandra.sh start  DATA_DIR [PORT]   the port is remembered in DATA_DIR; PORT+1 is the node's own
#   scripts/cassandra.sh stop   DATA_DIR          clean shutdown
#   scripts/cassandra.sh kill   DATA_DIR          SIGKILL
#   scripts/cassandra.sh status DATA_DIR          prints up or down; exit 3 when down
#   scripts/cassandra.sh pid    DATA_DIR          prints the pid of the running node, nothing when down
#   scripts/cassandra.sh version                  prints the node's name and version
#
# Needs java 17 and, for the first fetch, mvn.
# Environment:
#   CASSANDRA_VERSION  5.0.5
#   WEIR_CACHE         where the jars are kept (default: .cache of the checkout; a
#                      complete copy in the user's cache is used as it is)
#   CASSANDRA_HEAP     512m
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 java or mvn missing.
set -euo pipefail
# shellcheck source=scripts/server.sh
. "$(dirname "${BASH_SOURCE[0]}")/server.sh"

version=${CASSANDRA_VERSION:-5.0.5}
heap=${CASSANDRA_HEAP:-512m}
usage_lines=2,10
default_port=47242
verbs='fetch version start stop kill status pid'

# A copy is complete when .ok was written after the last jar.
libs() {
  local own=$cache/cassandra-$version
  local user=${XDG_CACHE_HOME:-$HOME/.cache}/weir/cassandra-$version
  if [ ! -f "$own/.ok" ] && [ -f "$user/.ok" ]; then echo "$user"; else echo "$own"; fi
}

fetch() {
  local dir; dir=$(libs)
  [ -f "$dir/.ok" ] && return 0
  command -v mvn >/dev/null || die 5 "mvn is needed to fetch Cassandra $version (Maven 3.6 or newer)"
  mkdir -p "$(dirname "$dir")"
  local tmp; tmp=$(mktemp -d "$dir.fetch.XXXXXX")
  cat >"$tmp/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>cassandra-runtime</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId><version>$version</version></dependency>
  </dependencies>
</project>
POM
  if ! mvn -q -B -f "$tmp/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
      -DincludeScope=runtime -DoutputDirectory="$tmp/jars" >&2; then
    rm -rf "$tmp"; die 1 "could not fetch Cassandra $version with mvn"
  fi
  touch "$tmp/jars/.ok"
  if [ ! -f "$dir/.ok" ]; then rm -rf "$dir"; mv "$tmp/jars" "$dir"; fi
  rm -rf "$tmp"
}

ours() { case "$1" in *"file://$data/cassandra.yaml"*) ;; *) return 1 ;; esac; }

configure() {
  cat >"$data/cassandra.yaml" <<YAML
cluster_name: weir-test
num_tokens: 4
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{seeds: "127.0.0.1:$((port + 1))"}]
listen_address: 127.0.0.1
storage_port: $((port + 1))
rpc_address: 127.0.0.1
native_transport_port: $port
endpoint_snitch: SimpleSnitch
data_file_directories: [$data/data]
commitlog_directory: $data/commitlog
saved_caches_directory: $data/saved_caches
hints_directory: $data/hints
cdc_raw_directory: $data/cdc
# Durable before it is acknowledged, so that a kill loses nothing.
commitlog_sync: batch
memtable_heap_space: 64MiB
memtable_offheap_space: 64MiB
auto_bootstrap: false
YAML
  cat >"$data/logback.xml" <<'XML'
<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%d %p %c{0} %m%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="out"/></root></configuration>
XML
}

version() { echo "Apache Cassandra $version"; }

start_server() {
  fetch
  command -v java >/dev/null || die 5 "java is needed to run Cassandra (17)"
  take_port "$port" "$((port + 1))"
  configure
  remember
  local opens=() m jar
  for m in java.base/java.lang java.base/java.lang.module java.base/java.lang.ref java.base/java.lang.reflect java.base/java.io java.base/java.math \
      java.base/java.net java.base/java.nio java.base/java.util java.base/java.util.concurrent java.base/java.util.concurrent.atomic \
      java.base/jdk.internal.loader java.base/jdk.internal.math java.base/jdk.internal.module java.base/jdk.internal.ref java.base/jdk.internal.reflect \
      java.base/jdk.internal.util.jar java.base/jdk.internal.vm java.base/sun.nio.ch java.rmi/sun.rmi.transport java.rmi/sun.rmi.transport.tcp \
      java.management/com.sun.jmx.mbeanserver jdk.management/com.sun.management.internal; do opens+=(--add-opens "$m=ALL-UNNAMED"); done
  for m in java.base/jdk.internal.misc java.base/jdk.internal.ref java.base/sun.nio.ch java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.registry \
      java.rmi/sun.rmi.server java.sql/java.sql java.rmi/sun.rmi.transport.tcp jdk.naming.dns/com.sun.jndi.dns jdk.compiler/com.sun.tools.javac.file; do
    opens+=(--add-exports "$m=ALL-UNNAMED")
  done
  jar=$(printf '%s\n' "$(libs)"/jamm-*.jar | head -n 1)
  launch \
    java "-Xms$heap" "-Xmx$heap" -XX:+UseG1GC -Djdk.attach.allowAttachSelf=true "${opens[@]}" "-javaagent:$jar" \
    "-Dlogback.configurationFile=$data/logback.xml" "-Dcassandra.config=file://$data/cassandra.yaml" "-Dcassandra.storagedir=$data" \
    -Dcassandra-foreground=yes -Dcassandra.skip_wait_for_gossip_to_settle=0 -Dcassandra.ring_delay_ms=100 -Dcassandra.superuser_setup_delay_ms=0 \
    -Djava.net.preferIPv4Stack=true -cp "$(libs)/*" org.apache.cassandra.service.CassandraDaemon
  await 180
}

serve "$@"
