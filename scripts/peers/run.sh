#!/usr/bin/env bash
# Measures Weir beside its peers on one real Kafka; bench.py says what and how.
#
#   scripts/peers/run.sh [--rows N] [--repeat R] [--engine NAME]… [--fresh] [--port P]
#
# Needs java 17, javac, mvn, Python 3.10, and 2 GB of downloads the first time.
# Environment: WEIR_BIN (default: bin/weir), WEIR_CACHE (default: .cache).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${WEIR_CACHE:-$root/.cache}
python=$("$root/scripts/venv.sh" peers)
exec "$python" "$root/scripts/peers/bench.py" --weir "${WEIR_BIN:-$root/bin/weir}" --work "$cache/peers/run" "$@"
