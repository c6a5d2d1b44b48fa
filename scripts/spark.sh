#!/usr/bin/env bash
# Makes a Spark that reads Iceberg tables, for the tests of `weir catalog serve`,
# and prints its Python and the jar of Iceberg's runtime, separated by a space.
#
#   scripts/spark.sh
#
# Needs java 17 or newer, python3, and mvn for the first fetch (0.5 GB in all).
# Environment:
#   WEIR_CACHE  where it is kept (default: .cache of the checkout)
# Exit codes: 1 failed, 5 java, mvn or Python missing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${WEIR_CACHE:-$root/.cache}
artifact=iceberg-spark-runtime-4.0_2.13
version=1.10.0
jar=$cache/$artifact-$version/$artifact-$version.jar

die() { local code=$1; shift; echo "spark.sh: $*" >&2; exit "$code"; }

command -v java >/dev/null || die 5 "java is needed to run Spark (17 or newer)"
python=$("$root/scripts/venv.sh" spark)
if [ ! -f "$jar" ]; then
  command -v mvn >/dev/null || die 5 "mvn is needed to fetch $artifact $version (Maven 3.6 or newer)"
  # Fetched next to its place, so that an interrupted fetch never looks complete.
  tmp=$(mktemp -d "$cache/$artifact.fetch.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
    -Dartifact="org.apache.iceberg:$artifact:$version" -DoutputDirectory="$tmp" >&2 || die 1 "could not fetch $artifact $version with mvn"
  mkdir -p "$(dirname "$jar")"
  mv "$tmp/$(basename "$jar")" "$jar"
fi
echo "$python $jar"
