#!/usr/bin/env bash
# Makes the Python environment of the independent readers (tests/readers), or of
# a tool that comes as a Python package (scripts/requirements), and prints its
# interpreter. Run again it does nothing, unless the requirements or the Python
# have changed.
#
#   scripts/venv.sh          PyIceberg, DuckDB, delta-rs: tests/readers/requirements.txt
#   scripts/venv.sh duckdb   an older DuckDB, for which there is an Iceberg extension on PyPI
#   scripts/venv.sh spark    PySpark (0.4 GB)
#   scripts/venv.sh attach   PyIceberg with what Postgres and Glue need
#   scripts/venv.sh dbt      dbt with its adapter for DuckDB
#   scripts/venv.sh zig | hadolint | chart | dagster | airflow | peers
#                            what packaging, examples and the benchmark of peers use
#   scripts/venv.sh registry Confluent's serializers for a schema registry
#   scripts/venv.sh moto     an emulation of AWS Glue and S3 (scripts/moto.sh), and PyIceberg to read from it
#
# Environment:
#   PYTHON      the Python to build it from (default: python3; 3.10 or newer)
#   WEIR_CACHE  where it is kept (default: .cache of the checkout)
# Exit codes: 1 failed, 2 usage, 5 no usable Python.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${WEIR_CACHE:-$root/.cache}
name=${1:-}
venv=$cache/venv${name:+-$name}
requirements=$root/tests/readers/requirements${name:+-$name}.txt
case "$name" in
  '') modules='duckdb, deltalake, pyarrow, pyiceberg.catalog.sql' ;;
  duckdb) modules='duckdb, duckdb_extension_iceberg' ;;
  spark) modules='pyspark' ;;
  attach) modules='pyiceberg.catalog.sql, pyiceberg.catalog.glue, psycopg' ;;
  dbt) modules='dbt.adapters.duckdb, duckdb' ;;
  zig) modules='ziglang' ;;
  hadolint) modules='sys' ;;
  chart) modules='kubernetes_validate, yaml' ;;
  dagster) modules='dagster' ;;
  airflow) modules='airflow' ;;
  peers) modules='confluent_kafka, pyarrow, pyiceberg.catalog.sql' ;;
  registry) modules='confluent_kafka.schema_registry.avro, confluent_kafka.schema_registry.protobuf, confluent_kafka.schema_registry.json_schema' ;;
  moto) modules='moto.server, moto.glue.models, moto.s3.models, pyiceberg.catalog.glue' ;;
  *) echo "venv.sh: no environment $name" >&2; exit 2 ;;
esac
case "$name" in zig | hadolint | chart | dagster | airflow | peers | registry) requirements=$root/scripts/requirements/$name.txt ;; esac
python=${PYTHON:-python3}

die() { local code=$1; shift; echo "venv.sh: $*" >&2; exit "$code"; }

command -v "$python" >/dev/null || die 5 "$python is missing: install Python 3.10 or newer, or set PYTHON"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die 5 "$("$python" -V) is too old: 3.10 or newer"
"$python" -c 'import ensurepip, venv' 2>/dev/null || die 5 "$python cannot make environments: install its venv module"

# What the environment was made from; the mark is written last, so that one
# that was interrupted is made again.
want=$("$python" -V; cksum <"$requirements")
if [ "$(cat "$venv/.made-from" 2>/dev/null)" = "$want" ] && [ -x "$venv/bin/python" ]; then
  echo "$venv/bin/python"
  exit 0
fi

mkdir -p "$cache"
exec 9>"$venv.lock"
if command -v flock >/dev/null; then flock 9; fi
if [ "$(cat "$venv/.made-from" 2>/dev/null)" != "$want" ]; then
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$requirements" >&2
  "$venv/bin/python" -m pip check --quiet >&2 || die 1 "the pinned versions do not fit together"
  "$venv/bin/python" -c "import $modules" || die 1 "the readers cannot be imported"
  printf '%s' "$want" >"$venv/.made-from"
fi
echo "$venv/bin/python"
