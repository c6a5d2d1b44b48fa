#!/usr/bin/env bash
# Runs Azurite, Microsoft's own EMULATION of Azure Blob Storage, from its npm
# package, without Docker. What passes on it has not been tried on Azure.
#
#   scripts/azurite.sh fetch
#   scripts/azurite.sh start  DIR [PORT]    the port is remembered in DIR; objects go to DIR/objects
#   scripts/azurite.sh stop   DIR           SIGTERM: it writes down what it holds
#   scripts/azurite.sh kill   DIR           SIGKILL: what it took in the last seconds may be gone
#   scripts/azurite.sh status DIR           prints up or down; exit 3 when down
#   scripts/azurite.sh pid    DIR           prints the pid of the running server, nothing when down
#
# The account is devstoreaccount1, with the key that Azurite publishes. Needs node,
# and npm for the first fetch (0.2 GB).
# Environment:
#   AZURITE_VERSION  3.35.0
#   WEIR_CACHE       where the package is kept (default: .cache of the checkout)
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 node, npm or the package missing.
set -euo pipefail
# shellcheck source=scripts/server.sh
. "$(dirname "${BASH_SOURCE[0]}")/server.sh"

version=${AZURITE_VERSION:-3.35.0}
lib=$cache/azurite
usage_lines=2,11
default_port=47690
verbs='fetch start stop kill status pid'

fetch() {
  if [ -f "$lib/.ok" ] && [ "$(cat "$lib/.ok")" = "$version" ]; then return 0; fi
  command -v npm >/dev/null || die 5 "npm is needed to fetch azurite $version"
  mkdir -p "$(dirname "$lib")"
  # Fetched next to its place and moved there whole: an interrupted fetch never
  # looks complete.
  local tmp; tmp=$(mktemp -d "$lib.fetch.XXXXXX")
  if ! npm install --prefix "$tmp" --no-save --no-audit --no-fund --ignore-scripts --loglevel error "azurite@$version" >&2; then
    rm -rf "$tmp"; die 1 "could not fetch azurite $version"
  fi
  echo "$version" >"$tmp/.ok"
  rm -rf "$lib"
  mv "$tmp" "$lib"
}

ours() { case "$1" in *" $data/objects "*) ;; *) return 1 ;; esac; }

start_server() {
  command -v node >/dev/null || die 5 "node is needed"
  [ -f "$lib/.ok" ] || die 5 "$lib is missing: run scripts/azurite.sh fetch"
  take_port "$port"
  remember
  mkdir -p "$data/objects"
  launch node "$lib/node_modules/azurite/dist/src/blob/main.js" --location "$data/objects" --blobHost 127.0.0.1 --blobPort "$port" --disableTelemetry --silent
  await 60
}

serve "$@"
