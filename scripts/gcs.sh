#!/usr/bin/env bash
# Runs an EMULATION of Google Cloud Storage (fake-gcs-server) from its Go module,
# without Docker. What passes on it has not been tried on Google's own.
#
#   scripts/gcs.sh fetch
#   scripts/gcs.sh start  DIR [PORT]    the port is remembered in DIR; objects go to DIR/objects
#   scripts/gcs.sh kill   DIR           SIGKILL
#   scripts/gcs.sh status DIR           prints up or down; exit 3 when down
#   scripts/gcs.sh pid    DIR           prints the pid of the running server, nothing when down
#
# Needs go for the first fetch, and a file system with extended attributes.
# Environment:
#   FAKE_GCS_VERSION  v1.56.1
#   WEIR_CACHE        where the program is kept, in bin/ (default: .cache of the checkout)
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 go or the program missing.
set -euo pipefail
# shellcheck source=scripts/server.sh
. "$(dirname "${BASH_SOURCE[0]}")/server.sh"

version=${FAKE_GCS_VERSION:-v1.56.1}
bin=$cache/bin/fake-gcs-server
usage_lines=2,10
default_port=47680
verbs='fetch start kill status pid'

fetch() {
  if [ -x "$bin" ] && [ "$(cat "$bin.version" 2>/dev/null)" = "$version" ]; then return 0; fi
  command -v go >/dev/null || die 5 "go is needed to build fake-gcs-server $version"
  mkdir -p "$(dirname "$bin")"
  # Built next to its place and moved there whole: an interrupted build never
  # looks complete.
  local tmp; tmp=$(mktemp -d "$bin.build.XXXXXX")
  if ! (cd "$tmp" && GOFLAGS= GOBIN="$tmp" go install -ldflags '-s -w' "github.com/fsouza/fake-gcs-server@$version" >&2); then
    rm -rf "$tmp"; die 1 "could not build fake-gcs-server $version"
  fi
  mv "$tmp/fake-gcs-server" "$bin"
  echo "$version" >"$bin.version"
  rm -rf "$tmp"
}

ours() { case "$1" in *" $data/objects "*) ;; *) return 1 ;; esac; }

start_server() {
  [ -x "$bin" ] || die 5 "$bin is missing: run scripts/gcs.sh fetch"
  take_port "$port"
  remember
  mkdir -p "$data/objects"
  launch "$bin" -scheme http -host 127.0.0.1 -backend filesystem -filesystem-root "$data/objects" -log-level warn -port "$port"
  await 60
}

serve "$@"
