#!/usr/bin/env bash
# Makes a Spark that reads lake tables, for the tests, and prints its Python and
# the jars of the table format, separated by a space; several jars by commas.
#
#   scripts/spark.sh         Iceberg, through REST catalogs and, by JDBC, SQL catalogs
#   scripts/spark.sh delta   Delta (delta-spark)
#
# Needs java 17 or newer, python3, and mvn for the first fetch (0.5 GB in all).
# Environment:
#   WEIR_CACHE  where it is kept (default: .cache of the checkout)
# Exit codes: 1 failed, 2 usage, 5 java, mvn or Python missing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${WEIR_CACHE:-$root/.cache}

die() { local code=$1; shift; echo "spark.sh: $*" >&2; exit "$code"; }

case "${1:-iceberg}" in
  iceberg) wanted='org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0 org.xerial:sqlite-jdbc:3.50.3.0 org.postgresql:postgresql:42.7.8' ;;
  # delta-spark for the minor version of Spark that the requirements pin.
  delta) wanted='io.delta:delta-spark_2.13:4.0.0 io.delta:delta-storage:4.0.0' ;;
  *) die 2 "no table format $1: iceberg or delta" ;;
esac

command -v java >/dev/null || die 5 "java is needed to run Spark (17 or newer)"
python=$("$root/scripts/venv.sh" spark)
jars=
for wants in $wanted; do
  IFS=: read -r _ artifact version <<<"$wants"
  jar=$cache/$artifact-$version/$artifact-$version.jar
  if [ ! -f "$jar" ]; then
    command -v mvn >/dev/null || die 5 "mvn is needed to fetch $artifact $version (Maven 3.6 or newer)"
    # Fetched next to its place, so that an interrupted fetch never looks complete.
    tmp=$(mktemp -d "$cache/$artifact.fetch.XXXXXX")
    trap 'rm -rf "$tmp"' EXIT
    mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
      -Dartifact="$wants" -DoutputDirectory="$tmp" >&2 || die 1 "could not fetch $artifact $version with mvn"
    mkdir -p "$(dirname "$jar")"
    mv "$tmp/$(basename "$jar")" "$jar"
    rm -rf "$tmp"
  fi
  jars=${jars:+$jars,}$jar
done
echo "$python $jars"
