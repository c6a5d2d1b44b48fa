#!/usr/bin/env bash
# Proves the fast groups against the newest versions of what the guarantee leans
# on: the Kafka client, the table library, Arrow, SQLite, the codec, and Apache
# Kafka itself. It works on a copy: the checkout and its go.mod stay as they are.
#
#   scripts/prove-upgrade.sh [SCENARIO…]   default: reference checkpoint ingest crash-points
#
# Prints the versions, then what `weir prove` prints. Further flags of `weir prove`
# go with the scenarios (--report upgrade.html --jobs 2).
#
# Needs go; java 17 or newer and mvn for Kafka.
# Environment:
#   KAFKA_VERSION  the broker's version (default: the newest that Maven serves)
#   WEIR_CACHE     where Kafka's jars are kept (default: .cache of the checkout)
# Exit codes: those of weir prove; 1 where the copy does not build with the newest
# versions, which is a finding as well, 5 java or mvn missing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
modules='github.com/twmb/franz-go github.com/twmb/franz-go/pkg/kadm github.com/twmb/franz-go/pkg/kfake
github.com/apache/iceberg-go github.com/apache/arrow-go/v18 modernc.org/sqlite github.com/valyala/gozstd'

die() { local code=$1; shift; echo "prove-upgrade.sh: $*" >&2; exit "$code"; }

# newest_kafka prints the newest version of the broker: the one that Maven takes
# for an open range.
newest_kafka() {
  command -v mvn >/dev/null || die 5 "mvn is needed to look for the newest Kafka; or set KAFKA_VERSION"
  local dir; dir=$(mktemp -d "$work/kafka.XXXXXX")
  cat >"$dir/pom.xml" <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>newest</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>[4.0.0,)</version></dependency>
  </dependencies>
</project>
POM
  mvn -q -B -f "$dir/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:list \
    -DexcludeTransitive=true -DoutputFile="$dir/list" >&2 || die 1 "could not ask Maven for Kafka's versions"
  sed -n 's/.*kafka-clients:jar:\([^:]*\):.*/\1/p' "$dir/list" | head -n 1
}

command -v java >/dev/null || die 5 "java is needed to run Kafka (17 or newer)"
work=$(mktemp -d "${TMPDIR:-/tmp}/weir-upgrade.XXXXXX")
trap 'rm -rf "$work"' EXIT
kafka=${KAFKA_VERSION:-$(newest_kafka)}
[ -n "$kafka" ] || die 1 "Maven named no version of Kafka"

# What is in the work tree, uncommitted changes as well.
mkdir "$work/copy"
(cd "$root" && git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do
  if [ -e "$f" ]; then printf '%s\0' "$f"; fi
done | tar --null -T - -cf -) | tar -xf - -C "$work/copy"
cd "$work/copy"
# shellcheck disable=SC2086 # a list of modules
before=$(go list -m $modules)
# shellcheck disable=SC2086
go get $(for m in $modules; do echo "$m@latest"; done) >&2 && go mod tidy >&2 || die 1 "the newest versions do not fit together"
# shellcheck disable=SC2086
after=$(go list -m $modules)
echo "Versions, as they are in go.mod and as they are tried:"
paste <(echo "$before") <(echo "$after" | cut -d' ' -f2) | sed 's/\t/ -> /; s/^/  /'
echo "  Apache Kafka $(sed -n 's/^version=${KAFKA_VERSION:-\(.*\)}$/\1/p' scripts/kafka.sh) -> $kafka"
go build -tags noduckdb -o bin/weir ./cmd/weir || die 1 "Weir does not build with the newest versions"

export KAFKA_VERSION=$kafka WEIR_CACHE=${WEIR_CACHE:-$root/.cache}
if [ $# -eq 0 ]; then set -- reference checkpoint ingest crash-points; fi
python=$root/.cache/venv/bin/python
if [ -x "$python" ]; then export WEIR_PYTHON=$python; fi
bin/weir prove "$@" --dir "$work/prove" --kafka-script scripts/kafka.sh
