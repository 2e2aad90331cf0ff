#!/bin/sh
# State and configuration stay until they are purged (Debian), or removed by hand (RPM).
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
case "${1:-}" in
purge) rm -rf /var/lib/gresshopper /run/gresshopper /etc/gresshopper ;;
esac
