#!/usr/bin/env bash
# Kills Weir and its peers in mid-backlog, takes their progress away, and lets
# `weir audit` count their tables; hurt.py says what and how.
#
#   scripts/peers/hurt.sh [--engine weir|spark|python|connect|flink]… [--rows N]
#
# Default: weir and spark. Prints a table; exit code 4 where Weir is not exact.
# Needs java 17, mvn, Python 3.10, and 1 GB of downloads the first time.
# Environment: WEIR_BIN (default: bin/weir), WEIR_CACHE (default: .cache).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${WEIR_CACHE:-$root/.cache}
python=$("$root/scripts/venv.sh" peers)
exec "$python" "$root/scripts/peers/hurt.py" --weir "${WEIR_BIN:-$root/bin/weir}" --work "$cache/peers/hurt" "$@"
