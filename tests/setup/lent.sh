#!/usr/bin/env bash
# Carries the end-to-end tests to a bare machine with a GPU: x86-64, root, python3 with torch, no network, any Debian or
# Ubuntu with a glibc as new as this machine's.
#
#   tests/setup/lent.sh pack     here: the release build, this machine's Slurm and MariaDB with their libraries, and Jupyter's
#                                wheels for the other machine's python (PYTHON_VERSION, 3.12), into .lent/ (60 MB in all
#                                with the tree; git ignores .lent/)
#   tests/setup/lent.sh unpack   there, in the copy of this tree: installs all that. The machine is one to throw away
#   tests/setup/lent.sh test     there: tests/e2e/test_gpu.py on the machine's first GPU; more arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/../.."
to=.lent
python_version=${PYTHON_VERSION:-3.12}
packages='slurmctld slurmd slurm-client slurm-wlm-basic-plugins slurm-wlm-mysql-plugin slurmdbd libslurm38 munge libmunge2
mariadb-server-core mariadb-server mariadb-client-core mariadb-client mariadb-common libmariadb3'
programs='hopd hop-agent hop hop-front hop-replica hop-slurm-link hop-gpu-helper devcluster libgresshopper.so
libhop_tracker.so'
# Libraries that must be the other machine's own.
its_own='/(libc|libm|libpthread|libdl|librt|libresolv|ld-linux-x86-64|libutil|libanl|libmvec|libgcc_s|libstdc\+\+|libnss_.*)\.so'

# The files of the packages that daemons and commands need, and what alternatives call them.
files() {
	local file link
	for package in $packages; do dpkg -L "$package" 2>/dev/null || true; done | sort -u |
		grep -vE '/share/(doc|man|lintian|bug|locale|bash-completion)/|/init\.d|systemd|initramfs|/mysql/plugin/' |
		grep -vE '/share/mysql/([a-df-z]|estonian)[a-z]*/errmsg' |
		grep -vE '/(mariabackup|mysqlslap|mysqldump|mysqlbinlog|mysqlimport|mysqlshow|mysqlcheck|mariadb-(dump|binlog|slap|test))$' |
		while read -r file; do
			if [ -f "$file" ]; then echo "$file"; fi
		done >"$1"
	for link in /usr/bin/* /usr/sbin/*; do
		if [ -L "$link" ] && grep -qxF "$(readlink -f "$link")" "$1"; then echo "$link"; fi
	done >"$1.links"
	cat "$1.links" >>"$1"
	while read -r file; do
		ldd "$file" 2>/dev/null | awk '/=> \//{print $3}' || true
	done <"$1" | sort -u | grep -vE "$its_own" >"$1.libraries"
	sort -u "$1" "$1.libraries"
}

pack() {
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	cargo build --release --locked --workspace
	rm -rf "$to"
	mkdir -p "$to/wheels" "$work/release"
	for program in $programs; do cp "target/release/$program" "$work/release/"; done
	strip "$work"/release/*
	tar -C "$work" -cf - release | xz -T0 -6 >"$to/release.tar.xz"
	files "$work/files" >"$work/all"
	tar -chf - -T "$work/all" 2>/dev/null | xz -T0 -9 >"$to/slurm.tar.xz"
	# Without the environment's libraries of science, which the other machine's torch brings.
	grep -E '^(asttokens|comm|debugpy|executing|ipykernel|ipython|ipython_pygments_lexers|jedi|jupyter_client|jupyter_core|matplotlib-inline|nest-asyncio2|parso|pexpect|platformdirs|prompt_toolkit|ptyprocess|pure_eval|pyzmq|stack-data|tornado|traitlets)==' \
		tests/setup/requirements-user.txt >"$work/wheels.txt"
	python3 -m pip download -q --no-deps --only-binary=:all: --python-version "$python_version" --implementation cp \
		--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
		-d "$to/wheels" -r "$work/wheels.txt" wcwidth python-dateutil decorator typing_extensions
	du -sh "$to" >&2
}

unpack() {
	tar -xJf "$to/slurm.tar.xz" -C / --skip-old-files
	mkdir -p target
	tar -xJf "$to/release.tar.xz" -C target
	ldconfig
	for user in slurm munge mysql; do
		id "$user" >/dev/null 2>&1 || useradd --system --shell /usr/sbin/nologin "$user"
	done
	python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --root-user-action=ignore "$to"/wheels/*.whl
}

run_tests() {
	local python
	python=$(python3 -c 'import sys; print(sys.executable)')
	# As it was tried: the lent machine runs its commands in a cgroup without controllers, of which slurmd complains.
	if [ -w /sys/fs/cgroup/cgroup.subtree_control ]; then
		echo '+cpu +cpuset +memory +pids' >/sys/fs/cgroup/cgroup.subtree_control
		mkdir -p /sys/fs/cgroup/lent
		echo $$ >/sys/fs/cgroup/lent/cgroup.procs
	fi
	HUB_PYTHON=$python USER_PYTHON=$python PROFILE=release CARGO_TARGET_DIR=$PWD/target \
		python3 -m pytest -p no:cacheprovider -s -v tests/e2e/test_gpu.py "$@"
}

verb=${1:-}
case $verb in
pack | unpack) "$verb" ;;
test) shift && run_tests "$@" ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
