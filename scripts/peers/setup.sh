#!/usr/bin/env bash
# Fetches what a peer needs into the cache and prints the folder of its jars.
#
#   scripts/peers/setup.sh spark|connect|worker|flink
#
# Needs java 17 (for flink: javac) and mvn. Environment: WEIR_CACHE (default: .cache).
# Exit codes: 1 failed, 2 usage, 5 a tool is missing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$root/scripts/peers
cache=${WEIR_CACHE:-$root/.cache}/peers
name=${1:-}
case "$name" in spark | connect | worker | flink) ;; *) sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
for tool in java mvn; do
  command -v "$tool" >/dev/null || { echo "setup.sh: $tool is missing" >&2; exit 5; }
done

jars=$cache/jars-$name
# What the folder was made from; written last, so that a broken fetch is made again.
if [ "$(cat "$jars/.made-from" 2>/dev/null)" != "$(cksum <"$here/pom-$name.xml")" ]; then
  mkdir -p "$cache"
  tmp=$(mktemp -d "$cache/fetch.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  mvn -q -B -f "$here/pom-$name.xml" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$tmp/jars" >&2 || { echo "setup.sh: mvn could not fetch the jars of $name" >&2; exit 1; }
  cksum <"$here/pom-$name.xml" >"$tmp/jars/.made-from"
  rm -rf "$jars"; mv "$tmp/jars" "$jars"
fi
if [ "$name" = flink ] && [ ! "$jars/classes/FlinkPeer.class" -nt "$here/flink/FlinkPeer.java" ]; then
  command -v javac >/dev/null || { echo "setup.sh: javac is missing" >&2; exit 5; }
  mkdir -p "$jars/classes"
  javac -nowarn -cp "$jars/*" -d "$jars/classes" "$here"/flink/*.java >&2
fi
echo "$jars"
