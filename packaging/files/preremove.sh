#!/bin/sh
# On removal (not on an upgrade) the services stop, and what was compiled goes.
set -e
case "${1:-}" in
remove | purge | 0)
	[ ! -d /run/systemd/system ] || systemctl disable --now hopd.service hop-gpu-helper.service || true
	find /opt/gresshopper/python -depth -type d -name __pycache__ -exec rm -rf {} + 2>/dev/null || true
	;;
esac
