#!/usr/bin/env bash
# Runs a real S3 server (versitygw on a folder) from its Go module, without Docker.
#
#   scripts/s3.sh fetch
#   scripts/s3.sh start  DATA_DIR [PORT]    the port is remembered in DATA_DIR
#   scripts/s3.sh bucket DATA_DIR NAME      makes a bucket
#   scripts/s3.sh stop   DATA_DIR           clean shutdown
#   scripts/s3.sh kill   DATA_DIR           SIGKILL
#   scripts/s3.sh status DATA_DIR           prints up or down; exit 3 when down
#   scripts/s3.sh pid    DATA_DIR           prints the pid of the running server, nothing when down
#   scripts/s3.sh version                   prints the server's name and version
#
# Objects lie in DATA_DIR/objects/BUCKET/KEY; DATA_DIR/access.log has a line per
# request. It speaks TLS where DATA_DIR/tls.crt and DATA_DIR/tls.key are there, and
# knows more keys where DATA_DIR/iam/users.json is (versitygw's internal IAM).
# Clients need path-style addresses, region us-east-1 and the keys below.
#
# Needs go for the first fetch, and a file system with extended attributes.
# Environment:
#   VERSITYGW_VERSION                v1.8.0
#   WEIR_CACHE                       where the program is kept, in bin/ (default: .cache of the checkout)
#   S3_ACCESS_KEY_ID, S3_SECRET_ACCESS_KEY  weir-test, weir-test-secret
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 go or the program missing.
set -euo pipefail
# shellcheck source=scripts/server.sh
. "$(dirname "${BASH_SOURCE[0]}")/server.sh"

version=${VERSITYGW_VERSION:-v1.8.0}
access=${S3_ACCESS_KEY_ID:-weir-test}
secret=${S3_SECRET_ACCESS_KEY:-weir-test-secret}
bin=$cache/bin/versitygw
usage_lines=2,12
default_port=47270
verbs='fetch version start stop kill status pid'
stop_seconds=30

fetch() {
  if [ -x "$bin" ] && [ "$(cat "$bin.version" 2>/dev/null)" = "$version" ]; then return 0; fi
  command -v go >/dev/null || die 5 "go is needed to build versitygw $version"
  mkdir -p "$(dirname "$bin")"
  # Built next to its place and moved there whole: an interrupted build never
  # looks complete.
  local tmp; tmp=$(mktemp -d "$bin.build.XXXXXX")
  if ! (cd "$tmp" && GOFLAGS= GOBIN="$tmp" go install -ldflags '-s -w' "github.com/versity/versitygw/cmd/versitygw@$version" >&2); then
    rm -rf "$tmp"; die 1 "could not build versitygw $version"
  fi
  mv "$tmp/versitygw" "$bin"
  echo "$version" >"$bin.version"
  rm -rf "$tmp"
}

ours() { case "$1" in *" posix $data/objects "*) ;; *) return 1 ;; esac; }

version() { echo "versitygw ${version#v}"; }

start_server() {
  [ -x "$bin" ] || die 5 "$bin is missing: run scripts/s3.sh fetch"
  take_port "$port"
  remember
  mkdir -p "$data/objects"
  local tls=()
  if [ -f "$data/tls.crt" ]; then tls=(--cert "$data/tls.crt" --key "$data/tls.key"); fi
  local iam=()
  if [ -f "$data/iam/users.json" ]; then iam=(--iam-dir "$data/iam"); fi
  ROOT_ACCESS_KEY="$access" ROOT_SECRET_KEY="$secret" \
    launch "$bin" --quiet --keep-alive --port "127.0.0.1:$port" --access-log "$data/access.log" "${tls[@]}" "${iam[@]}" posix "$data/objects"
  await 60
}

# A bucket is a folder.
if [ "${1:-}" = bucket ]; then
  [ $# -eq 3 ] || usage
  [ -d "$2" ] || exit 3
  mkdir -p "$2/objects/$3"
  exit 0
fi
serve "$@"
