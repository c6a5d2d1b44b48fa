#!/usr/bin/env bash
# Runs a real Apache Kafka (KRaft, one node) from its Maven artifacts, without Docker.
#
#   scripts/kafka.sh fetch
#   scripts/kafka.sh start  DATA_DIR [PORT] [--secure]
#                                              the port is remembered in DATA_DIR; PORT+1 is the controller's
#   scripts/kafka.sh stop   DATA_DIR           clean shutdown
#   scripts/kafka.sh kill   DATA_DIR           SIGKILL
#   scripts/kafka.sh status DATA_DIR           prints up or down; exit 3 when down
#   scripts/kafka.sh pid    DATA_DIR           prints the pid of the running broker, nothing when down
#   scripts/kafka.sh env    DATA_DIR           prints how to connect, as KEY=VALUE lines
#   scripts/kafka.sh client DATA_DIR NAME      makes another client certificate: secure/NAME.pem, NAME.key
#
# With --secure (remembered in DATA_DIR) the broker listens on four more ports:
#   PORT+2  TLS
#   PORT+3  TLS with a client certificate (mTLS)
#   PORT+4  log-in without TLS: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER
#   PORT+5  log-in over TLS: the same mechanisms
# and checks permissions: user weir and clients with a certificate may do
# everything, user guest (same password) nothing. OAUTHBEARER takes unsecured JWS
# with the claim sub, which is for tests only. The files are in DATA_DIR/secure:
# ca.pem, client.pem, client.key, other-ca.pem (signed nothing here), password.
# PORT itself stays without security and is the one that brokers use.
#
# Needs java 17 or newer, mvn for the first fetch, openssl for --secure.
# Environment:
#   KAFKA_VERSION  4.1.2
#   WEIR_CACHE     where the jars are kept (default: .cache of the checkout; a complete
#                  copy in the user's cache is used as it is)
#   KAFKA_HEAP     512m
#   KAFKA_PASSWORD password of weir and guest with --secure (default: random)
#   KAFKA_EXTRA    extra lines for server.properties; they win over the lines below
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 java, mvn or openssl missing.
set -euo pipefail

# shellcheck source=scripts/server.sh
. "$(dirname "${BASH_SOURCE[0]}")/server.sh"

usage_lines=2,13
default_port=47192
verbs='fetch start stop kill status pid env client'
version=${KAFKA_VERSION:-4.1.2}
heap=${KAFKA_HEAP:-512m}
start_seconds=120 # how long a start may take

# A copy is complete when .ok was written after the last jar.
libs() {
  local own=$cache/kafka-$version
  local user=${XDG_CACHE_HOME:-$HOME/.cache}/weir/kafka-$version
  if [ ! -f "$own/.ok" ] && [ -f "$user/.ok" ]; then echo "$user"; else echo "$own"; fi
}

# get_libs fetches the jars where they are not there.
get_libs() {
  local dir; dir=$(libs)
  [ -f "$dir/.ok" ] && return 0
  command -v mvn >/dev/null || die 5 "mvn is needed to fetch Kafka $version (Maven 3.6 or newer)"
  mkdir -p "$(dirname "$dir")"
  # Fetched next to its place and moved there whole, so that an interrupted
  # fetch never looks complete and two fetches at once do not mix.
  local tmp; tmp=$(mktemp -d "$dir.fetch.XXXXXX")
  cat >"$tmp/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka-runtime</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.24.3</version></dependency>
  </dependencies>
</project>
POM
  if ! mvn -q -B -f "$tmp/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
      -DincludeScope=runtime -DoutputDirectory="$tmp/jars" >&2; then
    rm -rf "$tmp"; die 1 "could not fetch Kafka $version with mvn"
  fi
  touch "$tmp/jars/.ok"
  if [ ! -f "$dir/.ok" ]; then rm -rf "$dir"; mv "$tmp/jars" "$dir"; fi
  rm -rf "$tmp"
}

fetch() { get_libs; libs; }

# Another broker has another server.properties.
ours() { case "$1" in *"kafka.Kafka $data/server.properties"*) ;; *) return 1 ;; esac; }

# authority NAME: a certificate authority in secure/NAME.pem.
authority() {
  openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj "/CN=$1" \
    -keyout "$data/secure/$1.key" -out "$data/secure/$1.pem" 2>/dev/null
}

# certificate NAME: a key pair in secure/NAME.pem and .key, signed by ca. PKCS#8
# keys, which is what Kafka reads.
certificate() {
  local d=$data/secure
  openssl req -new -newkey rsa:2048 -nodes -subj "/CN=$1" -keyout "$d/$1.key.new" -out "$d/$1.csr" 2>/dev/null
  openssl x509 -req -in "$d/$1.csr" -CA "$d/ca.pem" -CAkey "$d/ca.key" -set_serial "0x$(openssl rand -hex 8)" -days 3650 \
    -extfile <(echo "subjectAltName=IP:127.0.0.1,DNS:localhost") -out "$d/$1.pem.new" 2>/dev/null
  mv "$d/$1.key.new" "$d/$1.key"; mv "$d/$1.pem.new" "$d/$1.pem"; rm -f "$d/$1.csr"
}

# credentials makes what --secure needs, once per folder.
credentials() {
  local d=$data/secure
  [ -f "$d/.ok" ] && return 0
  command -v openssl >/dev/null || die 5 "openssl is needed to make the certificates of --secure"
  mkdir -p "$d"; chmod 700 "$d"
  authority ca; authority other-ca
  certificate broker; certificate client
  cat "$d/broker.key" "$d/broker.pem" >"$d/broker-keystore.pem"
  printf '%s' "${KAFKA_PASSWORD:-$(openssl rand -hex 12)}" >"$d/password"
  touch "$d/.ok"
}

secure_listeners() {
  local p=$1
  echo "TLS://127.0.0.1:$((p + 2)),MTLS://127.0.0.1:$((p + 3)),LOGIN://127.0.0.1:$((p + 4)),LOGINTLS://127.0.0.1:$((p + 5))"
}

# secure_properties are the lines of --secure.
secure_properties() {
  local d=$data/secure password l mechanism security=org.apache.kafka.common.security
  password=$(cat "$d/password")
  cat <<P
ssl.keystore.type=PEM
ssl.keystore.location=$d/broker-keystore.pem
ssl.truststore.type=PEM
ssl.truststore.location=$d/ca.pem
ssl.client.auth=none
listener.name.mtls.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:weir;User:CN=client;User:CN=client2
P
  for l in login logintls; do
    cat <<P
listener.name.$l.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.$l.plain.sasl.jaas.config=$security.plain.PlainLoginModule required user_weir="$password" user_guest="$password";
listener.name.$l.oauthbearer.sasl.jaas.config=$security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";
P
    for mechanism in scram-sha-256 scram-sha-512; do
      echo "listener.name.$l.$mechanism.sasl.jaas.config=$security.scram.ScramLoginModule required;"
    done
  done
}

configure() {
  local more='' map='' extra=''
  if [ -n "$secure" ]; then
    credentials
    more=,$(secure_listeners "$port"); extra=$(secure_properties)
    map=,TLS:SSL,MTLS:SSL,LOGIN:SASL_PLAINTEXT,LOGINTLS:SASL_SSL
  fi
  # The file holds passwords where there are any.
  (umask 077; : >"$data/server.properties")
  cat >"$data/server.properties" <<P
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((port + 1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))$more
advertised.listeners=PLAINTEXT://127.0.0.1:$port$more
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT$map
$extra
log.dirs=$data/logs
num.partitions=4
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
# The controller refuses a restarted broker until the session of its killed
# predecessor has run out; the default of 9 s makes every restart wait for that.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
${KAFKA_EXTRA:-}
P
  cat >"$data/log4j2.properties" <<'P'
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1} %m%n
logger.started.name=kafka.server.KafkaRaftServer
logger.started.level=INFO
P
}

cluster_id() { head -c 16 /dev/urandom | base64 | tr '+/' 'AB' | tr -d '='; }

start_server() {
  local p
  get_libs
  command -v java >/dev/null || die 5 "java is needed to run Kafka (17 or newer)"
  if [ -f "$data/secure/.ok" ]; then secure=1; fi
  take_port "$port" "$((port + 1))"
  if [ -n "$secure" ]; then take_port "$((port + 2))" "$((port + 3))" "$((port + 4))" "$((port + 5))"; fi
  configure
  remember
  local java=(java "-Xms$heap" "-Xmx$heap" -XX:+UseG1GC "-Dlog4j2.configurationFile=$data/log4j2.properties" -cp "$(libs)/*")
  if [ ! -f "$data/logs/meta.properties" ]; then
    local scram=() user mechanism
    if [ -n "$secure" ]; then
      for user in weir guest; do for mechanism in SCRAM-SHA-256 SCRAM-SHA-512; do
        scram+=(--add-scram "$mechanism=[name=$user,password=$(cat "$data/secure/password")]")
      done; done
    fi
    "${java[@]}" kafka.tools.StorageTool format "${scram[@]}" --ignore-formatted -t "$(cluster_id)" -c "$data/server.properties" \
      >"$data/format.log" 2>&1 || { cat "$data/format.log" >&2; die 1 "could not format $data/logs"; }
  fi
  seen=$(stat -c %s "$data/server.log" 2>/dev/null || echo 0)
  launch "${java[@]}" kafka.Kafka "$data/server.properties"
  await "$start_seconds" serves
}

# Ports are open before the broker counts as one: until then no topic can be made.
serves() {
  grep -q 'Kafka Server started' < <(tail -c "+$((seen + 1))" "$data/server.log" 2>/dev/null) || return 1
  [ -z "$secure" ] || listening "$((port + 5))"
}

own_env() {
  [ -f "$data/port" ] || die 3 "nothing was started in $data"
  local p; p=$(cat "$data/port")
  echo "KAFKA_PLAINTEXT=127.0.0.1:$p"
  [ -f "$data/secure/.ok" ] || return 0
  echo "KAFKA_TLS=127.0.0.1:$((p + 2))"
  echo "KAFKA_MTLS=127.0.0.1:$((p + 3))"
  echo "KAFKA_LOGIN=127.0.0.1:$((p + 4))"
  echo "KAFKA_LOGIN_TLS=127.0.0.1:$((p + 5))"
  echo "KAFKA_USER=weir"
  echo "KAFKA_PASSWORD_FILE=$data/secure/password"
  echo "KAFKA_CA=$data/secure/ca.pem"
  echo "KAFKA_OTHER_CA=$data/secure/other-ca.pem"
  echo "KAFKA_CLIENT_CERT=$data/secure/client.pem"
  echo "KAFKA_CLIENT_KEY=$data/secure/client.key"
}

own_client() { [ -n "$port" ] || usage; certificate "$port"; }

secure=
words=()
for word in "$@"; do
  case "$word" in --secure) secure=1 ;; *) words+=("$word") ;; esac
done
serve "${words[@]}"
