#!/bin/sh
# After the files are in place: the user exists, systemd knows the units. Nothing
# is started: a pipeline is the administrator's to enable.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
  systemd-sysusers weir.conf || true
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
