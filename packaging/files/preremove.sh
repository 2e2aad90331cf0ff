#!/bin/sh
# On removal (not on an upgrade) the services stop.
set -e
case "${1:-}" in
remove | purge | 0) [ ! -d /run/systemd/system ] || systemctl disable --now hopd.service hop-gpu-helper.service || true ;;
esac
