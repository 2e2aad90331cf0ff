#!/usr/bin/env bash
# Installs what the demo and the tests need and this machine lacks, and says so. Quick when all is there.
#
#   tests/setup/install.sh            install
#   tests/setup/install.sh --demo     the same without what the tests alone use
#   tests/setup/install.sh --check    only name what is missing; exit status 1 if anything is
#
# Debian packages (no package starts a daemon), the Rust toolchain, cargo-nextest, and below /opt/gresshopper-dev
# Python environments and the Node packages. Run by somebody who may not install, it is --check.
set -euo pipefail
umask 022

here=$(cd "$(dirname "$0")" && pwd)
prefix=/opt/gresshopper-dev
nextest_version=0.9.143
mode=${1:-}
case $mode in '' | --demo | --check) ;; *) echo "install: no option $mode; see the head of $0" >&2; exit 2 ;; esac
rustup_root=${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}
python=/usr/bin/python3

# "package probe": the package is missing when the probe, a path or a command, is.
packages='
slurmctld /usr/sbin/slurmctld
slurmd /usr/sbin/slurmd
slurm-client sinfo
slurm-wlm-basic-plugins /usr/share/doc/slurm-wlm-basic-plugins
slurm-wlm-mysql-plugin /usr/share/doc/slurm-wlm-mysql-plugin
slurmdbd /usr/sbin/slurmdbd
libslurm-dev /usr/include/slurm/slurm.h
munge /usr/sbin/munged
libmunge-dev /usr/include/munge.h
mariadb-server /usr/sbin/mariadbd
gcc cc
libc6-dev /usr/include/stdio.h
pkg-config pkg-config
libclang-dev /usr/share/doc/libclang-dev
debootstrap /usr/sbin/debootstrap
ca-certificates /etc/ssl/certs/ca-certificates.crt
curl curl
git git
make make
procps pgrep
iproute2 ss
nftables /usr/sbin/nft
python3 /usr/bin/python3
python3-venv /usr/share/doc/python3-venv
python3-numpy /usr/lib/python3/dist-packages/numpy
python3-pandas /usr/lib/python3/dist-packages/pandas
python3-scipy /usr/lib/python3/dist-packages/scipy
python3-sklearn /usr/lib/python3/dist-packages/sklearn
python3-matplotlib /usr/lib/python3/dist-packages/matplotlib
python3-torch /usr/lib/python3/dist-packages/torch
r-cran-irkernel /usr/share/jupyter/kernels/ir/kernel.json
chromium-headless-shell chromium-headless-shell
nodejs node
npm npm
shellcheck shellcheck
sudo sudo
'
[ "$mode" = --demo ] || packages+='prometheus promtool
prometheus-node-exporter prometheus-node-exporter
'

say() { echo "install: $*" >&2; }
list() { echo "  ${1//$'\n'/$'\n'  }" >&2; }

has() {
	case $1 in
	/*) [ -e "$1" ] ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

missing_packages() {
	while read -r package probe; do
		[ -z "$package" ] || has "$probe" || echo "$package"
	done <<<"$packages"
}

cargo_home=${CARGO_HOME:-$HOME/.cargo}
PATH=$cargo_home/bin:$PATH

has_rust() { has cargo && has rustc; }
has_nextest() { [ "$mode" = --demo ] || [ "$(cargo-nextest nextest --version 2>/dev/null | awk 'NR == 1 { print $2 }')" != "" ]; }

# What an environment was made from; it is made anew when that changes.
wanted_stamp() { cat "$@" | sha256sum | cut -d' ' -f1; }
fresh() { [ "$(cat "$prefix/$1/.stamp" 2>/dev/null)" = "$2" ]; }

venv_stamp() { { "$python" --version; cat "$here/requirements-$1.txt"; } | sha256sum | cut -d' ' -f1; }
has_venv() { [ -x "$python" ] && fresh "$1" "$(venv_stamp "$1")"; }
has_s3() { [ "$mode" = --demo ] || has_venv s3; }
has_kernels() { [ "$mode" = --demo ] || has_venv kernels; }
has_peers() { [ "$mode" = --demo ] || fresh peers "$(wanted_stamp "$here/requirements-peers.txt")"; }
has_packaging() { [ "$mode" = --demo ] || has_venv packaging; }
# Node packages by name: what the demo drives, what builds the Lab extension, what drives the browser tests.
node_source() {
	case $1 in
	node) echo "$here/node" ;;
	lab) echo "$here/../../jupyterhub-spawner/lab" ;;
	browser) echo "$here/../browser" ;;
	esac
}
node_stamp() { wanted_stamp "$(node_source "$1")/package.json" "$(node_source "$1")/package-lock.json"; }
has_node() { fresh "$1" "$(node_stamp "$1")" && { [ "$1" = node ] || [ -e "$(node_source "$1")/node_modules" ]; }; }
has_hub5() { [ "$mode" = --demo ] || has_venv hub5; }
has_browser() { [ "$mode" = --demo ] || has_node browser; }

missing() {
	local package
	for package in $(missing_packages); do echo "Debian package $package"; done
	has_rust || echo "the Rust toolchain (rustup, cargo)"
	has_nextest || echo "cargo-nextest $nextest_version"
	has_venv user || echo "$prefix/user, a Python environment of requirements-user.txt"
	has_venv hub || echo "$prefix/hub, a Python environment of requirements-hub.txt"
	has_s3 || echo "$prefix/s3, a Python environment of requirements-s3.txt"
	has_kernels || echo "$prefix/kernels, a Python environment of requirements-kernels.txt"
	has_peers || echo "$prefix/peers, the packages of requirements-peers.txt"
	has_packaging || echo "$prefix/packaging, a Python environment of requirements-packaging.txt"
	has_hub5 || echo "$prefix/hub5, a Python environment of requirements-hub5.txt"
	has_node node || echo "$prefix/node, the Node packages of node/package-lock.json"
	has_node lab || echo "$prefix/lab, the Node packages that build the Lab extension"
	has_browser || echo "$prefix/browser, the Node packages of the browser tests"
}

install_packages() {
	local wanted
	wanted=$(missing_packages)
	[ -n "$wanted" ] || return 0
	say "Debian packages: ${wanted//$'\n'/ }"
	local guard=/usr/sbin/policy-rc.d
	if [ ! -e $guard ]; then
		# So that no package starts a daemon: the dev cluster starts its own.
		trap 'rm -f '$guard EXIT
		printf '#!/bin/sh\nexit 101\n' >$guard
		chmod 755 $guard
	fi
	export DEBIAN_FRONTEND=noninteractive
	apt-get -q update >&2
	# shellcheck disable=SC2086 # a list of names
	apt-get -q -y install --no-install-recommends $wanted >&2
	trap - EXIT
	! grep -qx 'exit 101' $guard 2>/dev/null || rm -f $guard
}

install_rust() {
	! has_rust || return 0
	if apt-cache policy rustup | grep -q 'Candidate: [0-9]'; then
		say "Debian's rustup"
		apt-get -q -y install --no-install-recommends rustup >&2
	else
		say "rustup, from the Rust project ($rustup_root)"
		if ! fetch_rustup; then
			say "the Rust toolchain is missing and rustup can't be had from here:"
			say "install rustup or $(sed -n 's/^channel = //p' "$here/../../rust-toolchain.toml") of cargo, rustc, rustfmt and clippy, then run this again"
			return 1
		fi
	fi
	# rust-toolchain.toml says which toolchain.
	(cd "$here/../.." && RUSTUP_AUTO_INSTALL=1 rustup toolchain install >&2 && cargo --version >&2)
}

# Without a default toolchain and without touching anybody's profile.
fetch_rustup() {
	local place url status=0
	place=$(mktemp -d)
	url=$rustup_root/dist/$(uname -m)-unknown-linux-gnu/rustup-init
	(
		cd "$place" &&
			curl --proto '=https' -fsS --retry 3 -o rustup-init "$url" &&
			curl --proto '=https' -fsS --retry 3 "$url.sha256" | awk '{ print $1 "  rustup-init" }' | sha256sum -c --quiet &&
			chmod +x rustup-init &&
			./rustup-init -y --quiet --no-modify-path --profile minimal --default-toolchain none >&2
	) || status=1
	rm -rf "$place"
	return $status
}

install_nextest() {
	! has_nextest || return 0
	say "cargo-nextest $nextest_version (built from source: some minutes)"
	# It only starts processes: the time to build it is longer than all that optimising would save.
	(cd "$here/../.." && CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off cargo install --quiet --locked --version "$nextest_version" cargo-nextest >&2)
}

# make_venv NAME [OPTION OF venv..]: below the prefix, complete or not at all.
make_venv() {
	local name=$1
	shift
	! has_venv "$name" || return 0
	say "$prefix/$name: a Python environment"
	rm -rf "${prefix:?}/$name"
	"$python" -m venv "$@" "$prefix/$name"
	"$prefix/$name/bin/pip" install -q --disable-pip-version-check --no-compile -r "$here/requirements-$name.txt" >&2
	# Its users may not write here: without this each start of theirs would compile everything anew.
	"$prefix/$name/bin/python" -m compileall -q -j 0 "$prefix/$name/lib" >/dev/null 2>&1 || true
	chmod -R a+rX "$prefix/$name"
	# The package makes its kernelspec itself.
	[ "$name" != kernels ] || "$prefix/kernels/bin/python" -m bash_kernel.install --sys-prefix >&2
	venv_stamp "$name" >"$prefix/$name/.stamp"
}

# Beside an environment, not in it: what they need is the environment's own.
make_peers() {
	! has_peers || return 0
	say "$prefix/peers: Python packages"
	rm -rf "${prefix:?}/peers"
	"$prefix/hub/bin/pip" install -q --disable-pip-version-check --no-compile --no-deps --target "$prefix/peers" \
		-r "$here/requirements-peers.txt" >&2
	chmod -R a+rX "$prefix/peers"
	wanted_stamp "$here/requirements-peers.txt" >"$prefix/peers/.stamp"
}

# make_node NAME: below the prefix, complete or not at all. A source folder of its own finds them by a link.
make_node() {
	local name=$1 source
	! has_node "$name" || return 0
	source=$(node_source "$name")
	if ! fresh "$name" "$(node_stamp "$name")"; then
		say "$prefix/$name: Node packages"
		rm -rf "${prefix:?}/$name"
		mkdir -p "$prefix/$name"
		cp "$source/package.json" "$source/package-lock.json" "$prefix/$name/"
		(cd "$prefix/$name" && npm ci --silent --no-audit --no-fund --ignore-scripts >&2)
		chmod -R a+rX "$prefix/$name"
		node_stamp "$name" >"$prefix/$name/.stamp"
	fi
	[ "$name" = node ] || ln -sfn "$prefix/$name/node_modules" "$source/node_modules"
}

# What kernels run in, and what builds nothing.
user_side() {
	make_venv user --system-site-packages
	has_s3 || make_venv s3
	has_kernels || make_venv kernels
	make_node node
	make_node lab
	has_browser || make_node browser
}

hub_side() {
	make_venv hub
	make_peers # by the pip of the environment before it
	install_nextest
	has_hub5 || make_venv hub5
	has_packaging || make_venv packaging
}

# Runs functions beside each other: pip and npm keep one core busy at most. The first one that fails fails the whole, once
# the others have ended.
beside() {
	local side sides=() failed=0
	set -m # An interrupt ends them too.
	trap 'kill -TERM -- "${sides[@]/#/-}" 2>/dev/null; exit 130' INT TERM
	for side in "$@"; do
		(
			set -e
			"$side"
		) </dev/null &
		sides+=($!)
	done
	for side in "${sides[@]}"; do wait "$side" || failed=1; done
	trap - INT TERM
	set +m
	return $failed
}

lacking=$(missing)
[ -n "$lacking" ] || exit 0

if [ "$mode" = --check ] || [ "$(id -u)" != 0 ]; then
	say "this machine lacks:"
	list "$lacking"
	[ "$mode" = --check ] || say "run $here/install.sh as root, which installs it"
	exit 1
fi
if ! has apt-get; then
	say "this is no Debian: install these yourself:"
	list "$lacking"
	exit 1
fi

mkdir -p "$prefix"
exec 9>"$prefix/.lock"
flock 9
install_packages
install_rust
beside user_side hub_side
lacking=$(missing)
if [ -n "$lacking" ]; then
	say "still missing:"
	list "$lacking"
	exit 1
fi
say "all is there"
