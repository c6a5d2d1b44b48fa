#!/bin/sh
# Before the files go: stop what runs, but only when it is a removal. An upgrade
# (rpm: 1, deb: "upgrade") leaves pipelines running; restart them when it suits.
# Data, checkpoints and /etc/weir stay.
set -e
case "${1:-}" in
  1 | upgrade | deconfigure | failed-upgrade) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
  systemctl stop 'weir@*.service' 'weir-once@*.service' 'weir-once@*.timer' || true
fi
