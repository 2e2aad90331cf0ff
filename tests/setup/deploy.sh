#!/bin/sh
# Installs this tree's build into a running dev cluster and starts hopd there: what a sysadmin would do by hand.
#
#   tests/setup/deploy.sh up   BASE   install to BASE/opt, write BASE/etc/gresshopper.toml, the plugstack line, start hopd;
#                                     what runs there of another build, or with another configuration, is ended before
#   tests/setup/deploy.sh down BASE   cancel our jobs' daemon: stop hopd (by its pid)
#   tests/setup/deploy.sh hopd BASE   start hopd if it doesn't run (the chaos tests kill it)
#
# Environment: PROFILE (release), HOPD_PORT (17900), HOPD_EXTRA, POOL_EXTRA (lines added to [hopd], [pool.main]),
# GPUS_PER_PILOT (2), CPUS_PER_PILOT (8), SEAT_MEM_MIB (2048), PILOTS (4), MAX_PILOTS (PILOTS),
# LINGER_MS and GRACE_MS (2000), TIME_LIMIT_MIN (1440), REPLICAS and MIGRATE (as the pool's defaults are), USER_PYTHON and
# HUB_PYTHON (/opt/gresshopper-dev/{user,hub}/bin/python).
# The demo and the end-to-end tests both use it, so there is one way of installing.
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
verb=${1:?usage: deploy.sh up|down|hopd BASE}
base=${2:?usage: deploy.sh up|down|hopd BASE}
target=${CARGO_TARGET_DIR:-$here/target}/${PROFILE:-release}
port=${HOPD_PORT:-17900}
service=gresshopper
pid_file=$base/run/hopd.pid
# The cluster's own environment: SLURM_CONF, MUNGE_SOCKET, HOP_DEV_NODES.
eval "$("$target/devcluster" env --base "$base")"
conf=$base/etc/gresshopper.toml

# Whether the pid in the file is still the hopd that we started.
hopd_runs() {
	[ -s "$pid_file" ] && tr '\0' ' ' <"/proc/$(cat "$pid_file")/cmdline" 2>/dev/null | grep -q "^$base/opt/bin/hopd "
}

start_hopd() {
	hopd_runs && return 0
	# `devcluster exec` gives it the cluster's environment (and its chroot, where there is one) and becomes hopd.
	setsid "$target/devcluster" exec --base "$base" --user "$service" --chdir / --env "GRESSHOPPER_CONF=$conf" \
		--env "GRESSHOPPER_LOG=${GRESSHOPPER_LOG:-info}" -- "$base/opt/bin/hopd" >>"$base/log/hopd.log" 2>&1 </dev/null &
	pid=$!
	echo "$pid" >"$pid_file"
	for _ in $(seq 100); do
		! hopd_runs || return 0
		[ -d "/proc/$pid" ] || break
		sleep 0.05
	done
	tail -n 20 "$base/log/hopd.log" >&2
	echo "deploy: hopd did not start" >&2
	exit 1
}

stop_hopd() {
	hopd_runs || return 0
	pid=$(cat "$pid_file")
	kill "$pid" 2>/dev/null || true
	for _ in $(seq 100); do
		[ -d "/proc/$pid" ] || break
		sleep 0.05
	done
	rm -f "$pid_file"
}

# The sum of what long-lived processes run from, and of the configuration; nothing before the first installation.
installed() {
	[ ! -e "$conf" ] || find "$base/opt/bin" "$base/opt/lib" "$base/opt/python" "$conf" -type f ! -name '*.pyc' -print0 |
		sort -z | xargs -0 sha1sum | sha1sum
}

# A kept cluster has the daemon, pilots and seats of the build before: a test would run on those, and say nothing of it.
end_old() {
	echo "deploy: another build or configuration: hopd and all jobs of before are ended" >&2
	stop_hopd
	for _ in $(seq 300); do
		jobs=$(slurm squeue -h -o %A | sort -u)
		[ -n "$jobs" ] || return 0
		# shellcheck disable=SC2086 # several words
		slurm scancel $jobs
		sleep 0.2
	done
	echo "deploy: these jobs don't end: $jobs" >&2
	exit 1
}

slurm() {
	"$target/devcluster" exec --base "$base" --user root --chdir / -- "$@"
}

install_files() {
	mkdir -p "$base/opt/bin" "$base/opt/lib" "$base/opt/python" "$base/opt/share/jupyter/kernels" "$base/run" "$base/log"
	for name in hopd hop-agent hop hop-front hop-replica hop-slurm-link; do
		install -m 755 "$target/$name" "$base/opt/bin/$name.new"
		mv "$base/opt/bin/$name.new" "$base/opt/bin/$name"
	done
	install -m 755 "$target/libgresshopper.so" "$base/opt/lib/gresshopper.so.new"
	mv "$base/opt/lib/gresshopper.so.new" "$base/opt/lib/gresshopper.so"
	install -m 755 "$target/libhop_tracker.so" "$base/opt/lib/libhop_tracker.so.new"
	mv "$base/opt/lib/libhop_tracker.so.new" "$base/opt/lib/libhop_tracker.so"
	rm -rf "$base/opt/python/gresshopper"
	cp -r "$here/kernel/python/gresshopper" "$base/opt/python/"
	# `%%gpu --help` names the page for users.
	mkdir -p "$base/opt/share/doc"
	cp "$here"/docs/*.md "$base/opt/share/doc/"
	# For kernels of environments that have none, or one older than 3.
	ship cloudpickle "$base/opt/python/gresshopper/shipped"
	compile_for_kernels
	rm -rf "$base/opt/jupyter"
	# From a copy: a build leaves its traces beside the source.
	source=$(mktemp -d)
	(cd "$here/jupyterhub-spawner" && cp -r --parents pyproject.toml gresshopper_jupyter jupyter-config lab/install.json "$source/")
	"${HUB_PYTHON:-/opt/gresshopper-dev/hub/bin/python}" -m pip install -q --no-deps --no-build-isolation \
		--disable-pip-version-check --root-user-action=ignore --target "$base/opt/jupyter" "$source"
	rm -rf "$source"
	chmod -R a+rX "$base/opt"
}

# A user's kernel can't write there what it compiled, and would compile all again at each start.
compile_for_kernels() {
	for python in /opt/gresshopper-dev/user/bin/python "${HUB_PYTHON:-/opt/gresshopper-dev/hub/bin/python}"; do
		[ ! -x "$python" ] || "$python" -m compileall -q "$base/opt/python/gresshopper"
	done
}

# ship PACKAGE FOLDER: a package of the hub's environment, where it has that.
ship() {
	from=$("${HUB_PYTHON:-/opt/gresshopper-dev/hub/bin/python}" -c "import $1; print($1.__path__[0])" 2>/dev/null) || return 0
	mkdir -p "$2"
	cp -r "$from" "$2/$1"
	rm -rf "$2/$1/__pycache__"
}

write_conf() {
	install -d -o "$service" -m 700 "$base/state/hopd"
	install -d -o "$service" -m 755 "$base/state/agent"
	cat >"$conf" <<-CONF
		service_user = "$service"
		operators = ["root", "$service"]
		prefix = "$base/opt"
		munge_socket = "$base/munge/munge.socket"

		[hopd]
		listen = "127.0.0.1:$port"
		connect = ["127.0.0.1:$port"]
		state_dir = "$base/state/hopd"
		poll_s = 1
		${HOPD_EXTRA:-}

		[agent]
		state_dir = "$base/state/agent"

		[seat]
		partition = "notebook"
		mem_mib = ${SEAT_MEM_MIB:-2048}
		cpus = 1
		time_limit_min = 0

		[pool.main]
		partition = "notebook"
		account = "pool"
		gpus_per_pilot = ${GPUS_PER_PILOT:-2}
		cpus_per_pilot = ${CPUS_PER_PILOT:-8}
		min_pilots = ${PILOTS:-4}
		max_pilots = ${MAX_PILOTS:-${PILOTS:-4}}
		time_limit_min = ${TIME_LIMIT_MIN:-1440}
		linger_ms = ${LINGER_MS:-2000}
		grace_ms = ${GRACE_MS:-2000}
		isolation = "devices"
		${REPLICAS:+replicas = $REPLICAS}
		${MIGRATE:+migrate = $MIGRATE}
		${POOL_EXTRA:-}
	CONF
	chmod 644 "$conf"
	line="optional $base/opt/lib/gresshopper.so service_user=$service run_dir=$base/run/gresshopper munge_socket=$base/munge/munge.socket agent_dir=$base/state/agent"
	grep -qxF "$line" "$base/etc/plugstack.conf" 2>/dev/null && return
	echo "$line" >>"$base/etc/plugstack.conf"
	# A slurmd reads the file once for its epilogs; steps read it each time.
	for node in $(echo "$HOP_DEV_NODES" | tr , ' '); do
		"$target/devcluster" kill-slurmd --base "$base" "$node"
		"$target/devcluster" start-slurmd --base "$base" "$node"
	done
}

case $verb in
up)
	before=$(installed)
	install_files
	write_conf
	[ -z "$before" ] || [ "$before" = "$(installed)" ] || end_old
	start_hopd
	"$base/opt/bin/hop" kernelspec install --prefix "$base/opt" \
		--python "${USER_PYTHON:-/opt/gresshopper-dev/user/bin/python}" --name gresshopper-python3 \
		--display-name "Python 3 (GPU on demand)" >&2
	;;
hopd) start_hopd ;;
down) stop_hopd ;;
*) echo "usage: deploy.sh up|down|hopd BASE" >&2; exit 2 ;;
esac
