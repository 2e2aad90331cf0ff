#!/bin/sh
# The account and the folders. No service is started: it needs a configuration first.
set -e
if ! getent passwd gresshopper >/dev/null; then
	if command -v systemd-sysusers >/dev/null; then
		systemd-sysusers gresshopper.conf
	else
		useradd --system --home-dir /var/lib/gresshopper --shell /usr/sbin/nologin gresshopper
	fi
fi
# The parent is root's: in a folder of its own the account could put a link to anything, and an upgrade would give it that.
install -d -o root -g root -m 755 /var/lib/gresshopper
folder() {
	[ -L "$1" ] || install -d -o gresshopper -g "$(id -g gresshopper)" -m "$2" "$1"
}
folder /var/lib/gresshopper/agent 755
folder /var/lib/gresshopper/hopd 700
install -d -m 755 /run/gresshopper /etc/gresshopper
# A user's kernel can't write here what it compiled, and would compile all again at each start.
for python in /usr/bin/python3.[0-9] /usr/bin/python3.[0-9][0-9]; do
	[ ! -x "$python" ] || "$python" -m compileall -q /opt/gresshopper/python >/dev/null 2>&1 || true
done
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart hopd.service hop-gpu-helper.service || true
fi
