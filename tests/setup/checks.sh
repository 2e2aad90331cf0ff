#!/usr/bin/env bash
# Runs groups of checks and says at the end how each step went and how long it took.
#
#   tests/setup/checks.sh GROUP..
#
# Groups: lint, rust (no Slurm needed), python (no Slurm needed), cluster (the dev cluster itself, in each variant),
# e2e (Gresshopper on real Slurm, in each variant). Variants that this machine can't run are named, not skipped in
# silence. All steps of all groups run, whatever fails; the exit status is 1 if any did.
# Environment: PROFILE (debug) of the binaries that e2e deploys; E2E_VARIANTS; E2E_ARGS for pytest.
# shellcheck disable=SC2317 # functions are called through `step`
set -uo pipefail

here=$(cd "$(dirname "$0")/../.." && pwd)
cd "$here" || exit 1
dev=/opt/gresshopper-dev
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
export PROFILE=${PROFILE:-debug}
# Tests in Rust that need a Python with ipykernel would skip without one.
export HOP_TEST_PYTHON=${HOP_TEST_PYTHON:-$dev/user/bin/python}
profile_flag=()
[ "$PROFILE" != release ] || profile_flag=(--release)
summary=()
failed=0

# step NAME COMMAND..
step() {
	local name=$1 begin=$SECONDS
	shift
	printf '\n== %s\n' "$name" >&2
	if "$@"; then
		summary+=("ok      $((SECONDS - begin)) s  $name")
	else
		summary+=("FAILED  $((SECONDS - begin)) s  $name")
		failed=1
	fi
}

skip() {
	printf '\n== %s: can'\''t run here: %s\n' "$1" "$2" >&2
	summary+=("not run      $1: $2")
}

# Variants that this machine can run; the others are told to `skip`.
variants() {
	local group=$1 devices_v1=no unified=no
	grep -q ' cgroup [^ ]*\bdevices\b' /proc/self/mounts && devices_v1=yes
	grep -q ' cgroup2 ' /proc/self/mounts && unified=yes
	runnable=()
	for variant in ${E2E_VARIANTS:-v1 v2 trixie}; do
		if [ "$variant" = v1 ] && [ "$devices_v1" = no ]; then
			skip "$group on $variant" "this host has no cgroup v1"
		elif [ "$variant" != v1 ] && [ "$unified" = no ]; then
			skip "$group on $variant" "this host has no cgroup2 mount"
		elif [ "$variant" = trixie ] && ! "$target/devcluster" prepare trixie; then
			skip "$group on $variant" "the chroot of Debian 13 can't be made here"
		else
			runnable+=("$variant")
		fi
	done
}

target=${CARGO_TARGET_DIR:-$here/target}/$PROFILE

lint() {
	step "rustfmt" cargo fmt --all --check
	step "clippy" cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
	if command -v cargo-deny >/dev/null; then
		step "cargo-deny" cargo deny --log-level error check bans licenses sources
	else
		skip "cargo-deny" "it is not installed"
	fi
	step "ruff" "$dev/hub/bin/ruff" check --no-cache .
	step "ruff format" "$dev/hub/bin/ruff" format --no-cache --check .
	step "mypy: kernel/python" mypy_in kernel/python gresshopper
	step "mypy: jupyterhub-spawner" mypy_in jupyterhub-spawner gresshopper_jupyter
	step "mypy: tests/e2e" mypy_in tests/e2e .
	# shellcheck disable=SC2046 # file names without blanks
	step "shellcheck" shellcheck $(shell_scripts)
}

mypy_in() {
	(cd "$1" && "$dev/hub/bin/mypy" --strict --no-error-summary --cache-dir "${TMPDIR:-/tmp}/mypy-$(id -u)" "$2")
}

shell_scripts() {
	git ls-files | while read -r file; do
		[ ! -f "$file" ] || ! head -c 64 "$file" | head -n 1 | grep -qE '^#!.*\b(ba)?sh$' || echo "$file"
	done
}

rust() {
	step "build" cargo build --quiet --locked --workspace --all-targets
	step "Rust tests" cargo nextest run --locked --workspace --retries 1
	step "documentation's tests" cargo test --quiet --locked --workspace --doc
}

python() {
	step "Python tests: kernel" pytest_in "$dev/user/bin/python" kernel/python
	step "build of front and replica" cargo build --quiet --locked "${profile_flag[@]}" -p hop-front -p hop-replica
	step "Python tests: JupyterHub" pytest_installed
	step "notebooks, killed and restored" pytest_in "$dev/user/bin/python" tests/notebooks
}

pytest_in() {
	(cd "$2" && "$1" -m pytest -q -p no:cacheprovider --timeout 120 .)
}

# Jupyter finds spawner and provisioner by the entry points of an installed package: in an environment above hub's.
pytest_installed() {
	local place site status=0
	place=$(mktemp -d) || return 1
	cp -r jupyterhub-spawner/pyproject.toml jupyterhub-spawner/gresshopper_jupyter "$place" &&
		"$dev/hub/bin/python" -m venv --without-pip "$place/venv" &&
		site=$(echo "$place"/venv/lib/python*/site-packages) &&
		echo "$dev"/hub/lib/python*/site-packages >"$site/hub.pth" &&
		"$dev/hub/bin/pip" install -q --no-deps --no-build-isolation --no-index --disable-pip-version-check \
			--root-user-action=ignore --target "$site" "$place" &&
		HOP_BIN=$target pytest_in "$place/venv/bin/python" jupyterhub-spawner || status=1
	rm -rf "$place"
	return "$status"
}

deployables() {
	cargo build --quiet --locked "${profile_flag[@]}" --workspace --bins --lib
}

cluster() {
	step "build of devcluster" cargo build --quiet --locked "${profile_flag[@]}" -p devcluster
	variants "the dev cluster"
	local filter='test(a_)' variant
	for variant in "${runnable[@]}"; do
		case $variant in
		v1) filter+=' + test(slurm_on_cgroup_v1)' ;;
		v2) filter+=' + test(slurm_on_cgroup_v2)' ;;
		trixie) filter+=' + test(slurm_24_11)' ;;
		esac
	done
	step "the dev cluster on ${runnable[*]}" \
		cargo nextest run --locked -p devcluster --run-ignored only -j 1 --no-fail-fast --retries 1 -E "$filter"
}

e2e() {
	step "build of what is deployed" deployables
	variants "end to end"
	local variant
	for variant in "${runnable[@]}"; do
		step "end to end on $variant" e2e_on "$variant"
	done
	for variant in "${runnable[@]}"; do
		step "the plugin on $variant" plugin_on "$variant"
	done
}

# Everything on the host's own variant; on the others a cell's way, and on 24.11 what step managers are for.
e2e_on() {
	local target_dir=${CARGO_TARGET_DIR:-$here/target} tests=(tests/e2e)
	if [ "$1" != "${runnable[0]}" ]; then
		tests=(tests/e2e/test_lease.py)
		[ "$1" != trixie ] || tests+=(tests/e2e/test_chaos.py::test_slurmctld_away_for_20_s)
	fi
	if [ "$1" = trixie ]; then
		target_dir=$target_dir/trixie
		for_trixie "$target_dir" || return 1
	fi
	CARGO_TARGET_DIR=$target_dir HOP_E2E_VARIANT=$1 again pytest_e2e "${tests[@]}"
}

# One cluster for all tests of the plugin; its own test_cores.py is for a cluster with real cores, by hand.
plugin_on() {
	local status=0
	HOP_E2E=1 HOP_E2E_UP="--variant $1 --burst-nodes 0 --nodes 2" again pytest_e2e slurm-plugin/spank/tests || status=1
	"$target/devcluster" down --purge --base /srv/hop-plugin
	return "$status"
}

pytest_e2e() {
	"$dev/hub/bin/python" -m pytest -q -o cache_dir="$cache" --timeout 300 "$@" ${E2E_ARGS:+$E2E_ARGS}
}

# A real cluster on a busy machine: what failed gets a second try, and the log says that it needed one.
again() {
	cache=$(mktemp -d)
	local status=0
	"$@" || { echo "checks: what failed is tried a second time" >&2; "$@" --lf || status=1; }
	rm -rf "$cache"
	return "$status"
}

# The same programs, with what is built against Slurm's headers built against that series' headers.
for_trixie() {
	local root=/var/cache/gresshopper-dev/trixie
	mkdir -p "$1/$PROFILE"
	HOP_SLURM_INCLUDE=$root/usr/include HOP_SLURM_LIB=$root/usr/lib/$(uname -m)-linux-gnu \
		cargo build --quiet --locked "${profile_flag[@]}" --target-dir "$1/build" \
		-p gresshopper-spank -p hop-slurm-link || return 1
	find "$target" -maxdepth 1 -type f -executable -exec cp -t "$1/$PROFILE" {} +
	find "$1/build/$PROFILE" -maxdepth 1 -type f -executable -exec cp -t "$1/$PROFILE" {} +
}

for group in "$@"; do
	case $group in
	lint) lint ;;
	rust) rust ;;
	python) python ;;
	cluster) cluster ;;
	e2e) e2e ;;
	*)
		echo "checks: no group $group; see the head of $0" >&2
		exit 2
		;;
	esac
done
printf '\n== summary\n' >&2
printf '%s\n' "${summary[@]}" >&2
exit $failed
