#!/usr/bin/env bash
# Runs groups of checks and says at the end how each step went and how long it took.
#
#   tests/setup/checks.sh GROUP..
#
# Groups: lint, rust (no Slurm needed), python (no Slurm needed), lab (the Lab extension, no Slurm needed), cluster (the
# dev cluster itself, in each variant), e2e (Gresshopper on real Slurm, in each variant, and what people install and try),
# packages (of these the packages alone: built, installed by docs/install.md, upgraded and removed), fidelity (all
# notebooks and clients beside plain ipykernel), browser (JupyterHub in a real browser, with the newest and the oldest set
# of packages: two lanes, which share those tests between them whose result is the same in both).
# Variants that this machine can't run are named, not skipped in silence. All steps of all groups run, whatever fails; the
# exit status is 1 if any did.
# Environment: HOP_TESTS=all (`make test-all`) also runs tests marked `thorough`, the plugin on cgroup v2 with Slurm 22.05,
# packages on Debian 13, and chaos. PROFILE (debug) of the binaries that e2e deploys; E2E_VARIANTS; E2E_ARGS for
# pytest; BROWSER_ENVIRONMENTS (hub hub5) are the browser's lanes, and HOP_BROWSER_ALL=1 runs all tests in each.
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
all=no chosen=(-m "not thorough")
# `make test-all`, and groups that are run by hand for a release.
everything() {
	all=yes chosen=()
	export HOP_GRAPHS=${HOP_GRAPHS:-60} HOP_BROWSER_ALL=${HOP_BROWSER_ALL:-1}
}
[ "${HOP_TESTS:-}" != all ] || everything
scratch=$(mktemp -d)
summary=$scratch/summary failed=$scratch/failed
touch "$summary" "$failed"
trap 'rm -rf "$scratch"' EXIT

# step NAME COMMAND..
step() {
	local name=$1 begin=$SECONDS how=FAILED log
	shift
	log=$(mktemp -p "$scratch" step.XXXXXX)
	printf '\n== %s\n' "$name" >&2
	# Not a pipe: what a test leaves running may hold its end open.
	if "$@" > >(tee "$log" >&2) 2>&1; then how=ok; fi
	printf '%-7s %4d s  %s\n' "$how" "$((SECONDS - begin))" "$name" >>"$summary"
	[ "$how" = ok ] || last_lines "$name" "$log"
	[ "$how" = ok ]
}

# A record of the whole may be cut at its beginning: what failed is shown once more at its end.
last_lines() {
	sleep 1 # for `tee`
	{
		printf '\n== the last lines of: %s\n' "$1"
		# pytest's last words first: one line a test, where the tracebacks of many are alike.
		grep -E '^(FAILED|ERROR) ' "$2" | cut -c 1-300 | sort -u | head -n 20
		tail -n 40 "$2" | cut -c 1-300
	} >>"$failed"
}

skip() {
	printf '\n== %s: can'\''t run here: %s\n' "$1" "$2" >&2
	printf 'not run         %s: %s\n' "$1" "$2" >>"$summary"
}

# Runs functions, each with its arguments in one word, beside each other, and shows what each of them wrote when it has
# ended: most of their time they wait.
beside() {
	local lane lanes=()
	printf '\n== beside each other, each shown when it has ended: %s\n' "$*" >&2
	set -m # An interrupt goes to each of them, and is waited for: clusters are taken down.
	trap 'kill -INT -- "${lanes[@]/#/-}" 2>/dev/null; wait; exit 130' INT TERM
	for lane in "$@"; do
		(
			trap 'exit 130' INT
			$lane </dev/null >"$scratch/$lane.log" 2>&1
			cat "$scratch/$lane.log" >&2
		) &
		lanes+=($!)
	done
	wait
	trap - INT TERM
	set +m
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
		elif [ "$variant" = trixie ] && ! chroot_of_trixie; then
			skip "$group on $variant" "the chroot of Debian 13 can't be made here ($(tail -n 1 "$scratch/trixie"))"
		else
			runnable+=("$variant")
		fi
	done
}

# Once for all groups; devcluster tries each step three times, and what it says at the end goes into the summary.
chroot_of_trixie() {
	[ -e "$scratch/trixie" ] || {
		"$target/devcluster" prepare trixie 2>&1 | tee "$scratch/trixie" >&2
		echo "${PIPESTATUS[0]}" >"$scratch/trixie.status"
	}
	[ "$(cat "$scratch/trixie.status")" = 0 ]
}

target=${CARGO_TARGET_DIR:-$here/target}/$PROFILE

# Where the same run builds everything anyway, clippy takes rustc's place in the build: with nothing built before, 22 s more
# than a build (219 s), and not the 355 s of a check beside it. These are the variables that `cargo clippy` sets.
clippy() {
	if [[ " $groups " = *" rust "* ]]; then
		export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
		step "build, with clippy" build || unset RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS # The tests run all the same.
	else
		step "clippy" cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
	fi
}

lint() {
	step "rustfmt" cargo fmt --all --check
	clippy
	if command -v cargo-deny >/dev/null; then
		step "cargo-deny" cargo deny --log-level error check bans licenses sources
	else
		skip "cargo-deny" "it is not installed"
	fi
	step "biome" "$dev/lab/node_modules/.bin/biome" check --error-on-warnings .
	step "ruff" "$dev/hub/bin/ruff" check --no-cache .
	step "ruff format" "$dev/hub/bin/ruff" format --no-cache --check .
	step "mypy: kernel/python" mypy_in kernel/python gresshopper
	step "mypy: jupyterhub-spawner" mypy_in jupyterhub-spawner gresshopper_jupyter
	step "mypy: tests/e2e" mypy_in tests/e2e .
	step "mypy: tests/fidelity" mypy_in tests/fidelity .
	# shellcheck disable=SC2046 # file names without blanks
	step "shellcheck" shellcheck -x $(shell_scripts)
	step "floors" tests/setup/floors.py
	step "circles" tests/setup/circles.py
	step "twins" tests/setup/twins.py
	step "sizes" tests/setup/sizes.py
	step "promises" tests/setup/promises.py
}

mypy_in() {
	(cd "$1" && "$dev/hub/bin/mypy" --strict --no-error-summary --cache-dir "${TMPDIR:-/tmp}/mypy-$(id -u)" "$2")
}

shell_scripts() {
	git ls-files | while read -r file; do
		[ ! -f "$file" ] || ! head -c 64 "$file" | head -n 1 | grep -qE '^#!.*\b(ba)?sh$' || echo "$file"
	done
}

# All that there is to build, always: of a part of it, cargo would build many crates anew with other features.
build() {
	cargo build --quiet --locked "${profile_flag[@]}" --workspace --all-targets "$@"
}

# Where the dev cluster's own tests run too, they run beside these: most of their time they wait.
rust() {
	step "build" build
	if [[ " $groups " = *" cluster "* ]] && variants "the dev cluster" && step "build of what is deployed" deployables; then
		beside rust_tests cluster_itself alone
	else
		rust_tests
	fi
}

rust_tests() {
	step "Rust tests" cargo nextest run --locked --workspace --retries 1 --no-fail-fast
	step "documentation's tests" cargo test --quiet --locked --workspace --doc
}

# An interpreter that writes no bytecode (PYTHONDONTWRITEBYTECODE) compiles the whole agent at each start of a kernel, for a
# quarter of a second.
compiled() {
	"$dev/user/bin/python" -m compileall -q kernel/python jupyterhub-spawner/gresshopper_jupyter
}

# Where the browser tests run too, these run beside them: alone, the kernel's tests leave one of two cores idle.
python() {
	[[ " $groups " != *" browser "* ]] || return 0
	step "build" build || return
	step "bytecode" compiled
	beside python_kernel python_jupyter
}

python_kernel() {
	step "Python tests: kernel" again pytest_in "$dev/user/bin/python" kernel/python
}

python_jupyter() {
	step "Python tests: JupyterHub" pytest_installed
	step "notebooks, killed and restored" again pytest_in "$dev/user/bin/python" tests/notebooks
}

# A test ends after two minutes; what holds up the interpreter itself, or its end, isn't a test: after three quarters of an
# hour the whole is ended, and each thread's stack is in the log. Beside browsers all take twenty minutes of slow cores.
pytest_in() {
	(cd "$2" && PYTHONFAULTHANDLER=1 timeout --foreground --signal ABRT --kill-after 30 2700 \
		"$1" -m pytest -q -o cache_dir="$cache" --timeout 120 "${chosen[@]}" "${@:3}" .)
}

# Jupyter finds spawner and provisioner by the entry points of an installed package: in an environment above hub's.
pytest_installed() {
	local place status=0
	place=$(mktemp -d) || return 1
	tests/setup/overlay.sh "$dev/hub" "$place/venv" &&
		HOP_BIN=$target again pytest_in "$place/venv/bin/python" jupyterhub-spawner || status=1
	rm -rf "$place"
	return "$status"
}

lab() {
	step "the Lab extension" npm --silent --prefix jupyterhub-spawner/lab run build
	step "tests of the Lab extension" npm --silent --prefix jupyterhub-spawner/lab test
}

browser() {
	step "build" build || return
	lab
	step "types of the browser tests" "$dev/lab/node_modules/.bin/tsc" -p tests/browser
	step "lanes of the browser tests" tests/setup/lanes.py
	local environment index=14 lanes=()
	for environment in ${BROWSER_ENVIRONMENTS:-hub hub5}; do
		lanes+=("browser_in $environment $((index++))")
	done
	if [[ " $groups " = *" python "* ]]; then
		step "bytecode" compiled
		lanes+=(python_kernel python_jupyter)
	fi
	beside "${lanes[@]}"
}

# browser_in ENVIRONMENT INDEX: a cluster, a Hub and a folder of results of its own.
browser_in() {
	HOP_BROWSER_ENV=$1 HOP_BROWSER_INDEX=$2 HOP_BROWSER_BASE=/srv/gresshopper-browser-$2 \
		step "JupyterHub in a browser: $1" playwright
}

# A real cluster on a busy machine: a test that failed gets a second try, and is reported as flaky then.
playwright() {
	(cd tests/browser && timeout --foreground --signal INT --kill-after 120 2700 node_modules/.bin/playwright test --retries 1)
}

cluster() {
	[[ " $groups " != *" rust "* ]] || return 0 # `rust` ran the cluster's tests beside its own.
	step "build" build || return
	variants "the dev cluster"
	step "build of what is deployed" deployables || return
	beside cluster_itself alone
}

cluster_itself() {
	local filter='package(devcluster) & (test(/^a_/)' variant # The others of the file are one variant's.
	for variant in "${runnable[@]}"; do
		case $variant in
		v1) filter+=' + test(slurm_on_cgroup_v1)' ;;
		v2) filter+=' + test(slurm_on_cgroup_v2)' ;;
		trixie) filter+=' + test(slurm_24_11)' ;;
		esac
	done
	step "the dev cluster on ${runnable[*]}" \
		cargo nextest run --locked --workspace --run-ignored only -j 1 --no-fail-fast --retries 1 -E "$filter)"
}

# A host has 56 numbers for fake GPUs: eight for each of these lanes and for clusters beside theirs two more, four for the
# plugin's. Where they run short, a cluster waits for another's end.
export HOP_DEV_PATIENCE=200

# Everything on the host's own variant, by four runs that share the files of tests; on the others a cell's way, and on
# 24.11 what step managers are for; the plugin on each. Each lane has clusters of its own, by index. A lane waits for most
# of its time; all together keep two cores busy.
e2e() {
	step "build" build || return
	variants "end to end"
	step "build of what is deployed" deployables || return
	mkdir "$scratch/shared"
	beside "e2e_shared "{1,2,3,4} e2e_others plugin tried
	[[ " $groups " = *" cluster "* ]] || alone
}

# Beside the dev cluster's own tests, and no others: those use no plugin, hence no look at all processes.
alone() {
	local variant
	for variant in "${runnable[@]:0:2}"; do
		HOP_E2E_ALONE=1 step "the plugin alone on its host, on $variant" \
			plugin_on "$variant" 13 slurm-plugin/spank/tests/test_alone.py
	done
}

# What people install and try, one after another: most of it waits. Bursts have a cluster of their own.
tried() {
	packaged
	demo
	HOP_E2E_SCALE_INDEX=14 e2e_on "${runnable[0]}" "bursts" 14 "$bursts"
	[ "$all" = no ] || chaos
}

packages() {
	everything
	step "build" build || return
	variants "packages"
	step "build of what is deployed" deployables || return
	packaged
}

# On this host. Where everything is asked for, also in the chroot of Debian 13: two releases, two series of Slurm.
packaged() {
	local variant
	step "packages" packages_built || return
	for variant in "${runnable[@]}"; do
		[ "$variant" = "${runnable[0]}" ] || { [ "$all" = yes ] && [ "$variant" != v2 ]; } || continue
		OUT=$scratch/packages HOP_PACKAGES_INDEX=14 \
			step "install.md on $variant: install, lease, upgrade, remove" twice ended packaging/try "$variant"
	done
}

packages_built() {
	local series=()
	[[ " ${runnable[*]} " != *" trixie "* ]] || [ "$all" = no ] || series=("$trixie/$PROFILE")
	BUILT=1 OUT=$scratch/packages packaging/build "${series[@]}"
}

# What was built here, with a Hub and a browser, down again at the end.
demo() {
	step "arguments of the demo" tests/demo/ends arguments
	BUILT=1 STAY=0 HOP_DEMO_BASE=/srv/gresshopper-demo-16 HOP_DEMO_INDEX=16 HUB_PORT=8160 \
		step "make demo" twice ended tests/demo/run
}

# A short run of `make chaos`.
chaos() {
	CARGO_TARGET_DIR=$(deployed_on "${runnable[0]}") HOP_E2E_VARIANT=${runnable[0]} HOP_E2E_INDEX=14 \
		HOP_E2E_BASE=/srv/gresshopper-chaos-14 \
		step "two minutes of chaos" twice ended "$dev/hub/bin/python" tests/e2e/chaos.py --seed 1 --minutes 2
}

# What docs/conformance.md compares, with all notebooks.
fidelity() {
	everything
	step "build" build || return
	variants "fidelity"
	step "build of what is deployed" deployables || return
	HOP_NOTEBOOKS=all e2e_on "${runnable[0]}" "beside plain ipykernel" 9 tests/e2e/test_clients.py
	step "nbclient's and papermill's own tests" "$dev/hub/bin/python" tests/fidelity/suites.py "$target"
}

bursts=tests/e2e/test_scale.py
e2e_shared() {
	HOP_E2E_SHARED=$scratch/shared \
		e2e_on "${runnable[0]}" "all, run $1 of four" "$((7 + $1))" tests/e2e "--ignore=$bursts"
}

e2e_others() {
	local variant tests
	for variant in "${runnable[@]:1}"; do
		tests=(tests/e2e/test_lease.py)
		[ "$variant" != trixie ] || tests+=(tests/e2e/test_chaos.py::test_slurmctld_away_for_20_s)
		e2e_on "$variant" "a cell's way" 12 "${tests[@]}"
	done
	for variant in "${runnable[@]:2}"; do
		step "the plugin on $variant" plugin_on "$variant" 12
	done
}

# The third variant, in another lane, is cgroup v2 with the newest Slurm: the second runs where everything is asked for.
plugin() {
	local variant count=2
	[ "$all" = yes ] || [ "${#runnable[@]}" -lt 3 ] || count=1
	for variant in "${runnable[@]:0:$count}"; do
		step "the plugin on $variant" plugin_on "$variant" 13
	done
}

# The target folder with the binaries for a variant.
deployed_on() {
	if [ "$1" = trixie ]; then echo "$trixie"; else dirname "$target"; fi
}

# e2e_on VARIANT WHAT INDEX TESTS..
e2e_on() {
	local variant=$1 what=$2 index=$3
	shift 3
	CARGO_TARGET_DIR=$(deployed_on "$variant") HOP_E2E_VARIANT=$variant HOP_E2E_INDEX=$index \
		HOP_E2E_BASE=/srv/gresshopper-e2e-$index \
		step "end to end on $variant: $what" again pytest_e2e "$@"
}

# plugin_on VARIANT INDEX [TESTS]: one cluster for all tests of the plugin; its own test_cores.py is for a cluster with real cores, by hand.
plugin_on() {
	local status=0 base=/srv/hop-plugin-$1 library=$target/test-panic
	[ "$1" != trixie ] || library=$trixie/test-panic
	HOP_E2E=1 HOP_E2E_BASE=$base HOP_E2E_INDEX=$2 HOP_E2E_UP="--variant $1 --burst-nodes 0 --nodes 2" \
		HOP_E2E_DEVCLUSTER=$target/devcluster HOP_E2E_PLUGIN=$library/libgresshopper.so \
		again pytest_e2e "${3:-slurm-plugin/spank/tests}" || status=1
	"$target/devcluster" down --purge --base "$base"
	return "$status"
}

# The programs, and the plugin that its tests make panic: the latter first, since both bear one name. For 24.11 the same
# programs, with what is built against Slurm's headers (the plugin and libslurm's helper) built against that series'.
trixie=$(dirname "$target")/trixie
deployables() {
	local root=/var/cache/gresshopper-dev/trixie
	if [[ " ${runnable[*]} " = *" trixie "* ]]; then
		mkdir -p "$trixie/$PROFILE" &&
			for_tests "$trixie/test-panic" "$root" && for_slurm "$root" &&
			find "$target" -maxdepth 1 -type f -executable -exec cp -t "$trixie/$PROFILE" {} + || return 1
	fi
	for_tests "$target/test-panic" && for_slurm
}

# for_tests DIRECTORY [ROOT]
for_tests() {
	for_slurm "${2-}" --features hop-spank/test-panic &&
		mkdir -p "$1" && cp "$target/libgresshopper.so" "$1"
}

# for_slurm [ROOT] [CARGO'S OPTIONS..]: against the Slurm that is installed below ROOT, else the host's.
for_slurm() {
	local root=${1-}
	shift "$(($# > 0))"
	if [ -n "$root" ]; then
		HOP_SLURM_INCLUDE=$root/usr/include HOP_SLURM_LIB=$root/usr/lib/$(uname -m)-linux-gnu build "$@"
	else
		build "$@"
	fi
}

# Interrupted where it takes too long as a whole, for it to take its clusters down.
pytest_e2e() {
	timeout --foreground --signal INT --kill-after 120 2100 "$dev/hub/bin/python" -m pytest -q -o cache_dir="$cache" --durations 12 --timeout 300 "${chosen[@]}" "$@" ${E2E_ARGS:+$E2E_ARGS}
}

# A real cluster on a busy machine: what failed gets a second try, and the log says that it needed one.
again() {
	local cache status=0
	cache=$(mktemp -d)
	"$@" || { echo "checks: what failed is tried a second time" >&2; "$@" --lf || status=1; }
	rm -rf "$cache"
	return "$status"
}

# A program that takes down what it started where it takes too long.
ended() {
	timeout --foreground --signal INT --kill-after 120 900 "$@"
}

# The same of what has no tests to choose from.
twice() {
	"$@" || { echo "checks: what failed is tried a second time" >&2; "$@"; }
}

groups=$*
for group in "$@"; do
	case $group in
	lint) lint ;;
	rust) rust ;;
	python) python ;;
	cluster) cluster ;;
	e2e) e2e ;;
	packages) packages ;;
	fidelity) fidelity ;;
	lab) lab ;;
	browser) browser ;;
	*)
		echo "checks: no group $group; see the head of $0" >&2
		exit 2
		;;
	esac
done
cat "$failed" >&2
printf '\n== summary\n' >&2
cat "$summary" >&2
! grep -q ^FAILED "$summary"
