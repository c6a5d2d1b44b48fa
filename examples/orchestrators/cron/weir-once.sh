#!/bin/sh
# weir-once.sh FILE [TRIES]: works off what is there in the pipeline FILE, and tries
# again what may be tried again. For cron, or any scheduler that knows only
# success and failure:
#
#   */15 * * * *  weir  /usr/local/bin/weir-once.sh /etc/weir/edits.yaml
#
# No lock is needed: a run that meets another one ends with 5 at once. The exit
# code is weir's own, of the last try.
set -u
file=${1:?usage: weir-once.sh FILE [TRIES]}
tries=${2:-3}
wait=${WEIR_RETRY_SECONDS:-20}
try=1
while :; do
  "${WEIR_BIN:-weir}" run --once "$file"
  code=$?
  case $code in
    0) exit 0 ;;
    1 | 6 | 8 | 130 | 143) ;;  # safe to start again
    5) exit 5 ;;               # another run is under way: the next turn comes
    *) exit "$code" ;;         # somebody has to decide first: a mail from cron
  esac
  if [ "$try" -ge "$tries" ]; then exit "$code"; fi
  sleep "$((wait * try))"
  try=$((try + 1))
done
