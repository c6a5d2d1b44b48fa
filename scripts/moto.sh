#!/usr/bin/env bash
# Runs moto, an EMULATION of AWS Glue and S3 in memory, from its Python package
# (scripts/venv.sh moto). What passes on it has not been tried on AWS. Its Glue
# does not look at the version that an update is conditional on, so that the last
# of two racing commits wins; what it holds is gone with the process.
#
#   scripts/moto.sh start  DIR [PORT]    the port is remembered in DIR
#   scripts/moto.sh kill   DIR           SIGKILL
#   scripts/moto.sh status DIR           prints up or down; exit 3 when down
#   scripts/moto.sh pid    DIR           prints the pid of the running server, nothing when down
#
# Any keys will do. Environment:
#   WEIR_CACHE  where the environment of scripts/venv.sh is (default: .cache of the checkout)
# Exit codes: 1 failed, 2 usage, 3 down, 4 port taken by somebody else, 5 moto missing.
set -euo pipefail
# shellcheck source=scripts/server.sh
. "$(dirname "${BASH_SOURCE[0]}")/server.sh"

python=$cache/venv-moto/bin/python
usage_lines=2,10
default_port=47580
verbs='start kill status pid'

ours() { case "$1" in *" -c "*" $data "*) ;; *) return 1 ;; esac; }

start_server() {
  [ -x "$python" ] || die 5 "$python is missing: run scripts/venv.sh moto"
  take_port "$port"
  remember
  launch "$python" -c 'import sys; from moto.server import main; main(["-H", "127.0.0.1", "-p", sys.argv[2]])' "$data" "$port"
  await 120
}

serve "$@"
