#!/usr/bin/env bash
# Makes a Python environment above another one, with this tree's gresshopper-jupyter installed in it as pip installs it.
#
#   tests/setup/overlay.sh BELOW PLACE     BELOW: /opt/gresshopper-dev/hub, say; PLACE: a folder that isn't there yet
#
# What is found by being installed is found: entry points, the Lab extension, the server extension. The environment below
# stays as it is; its packages are found by a path, not copied. The Lab extension is in it if `make lab` has built it.
set -euo pipefail

here=$(cd "$(dirname "$0")/../.." && pwd)
below=${1:?usage: overlay.sh BELOW PLACE}
place=${2:?usage: overlay.sh BELOW PLACE}
umask 022

"$below/bin/python" -m venv --without-pip "$place"
site=$(echo "$place"/lib/python*/site-packages)
echo "$below"/lib/python*/site-packages >"$site/below.pth"
# Copied: Jupyter Server serves no file that a link leads to from outside of its folders.
for folder in etc share; do
	[ ! -d "$below/$folder" ] || cp -r "$below/$folder" "$place/"
done

# From a copy: a build leaves its traces beside the source.
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
for part in pyproject.toml gresshopper_jupyter jupyter-config labextension lab/install.json; do
	[ ! -e "$here/jupyterhub-spawner/$part" ] || (cd "$here/jupyterhub-spawner" && cp -r --parents "$part" "$source/")
done
/opt/gresshopper-dev/hub/bin/pip wheel -q --no-deps --no-build-isolation --no-index --disable-pip-version-check -w "$source/wheel" "$source"
# pip of the environment below, installing into the one above.
"$place/bin/python" "$below"/lib/python*/site-packages/pip install -q --no-deps --no-index --disable-pip-version-check \
	--root-user-action=ignore "$source"/wheel/*.whl
# The scripts of the environment below run in the one above.
for script in "$below"/bin/jupyter*; do
	name=$(basename "$script")
	[ -e "$place/bin/$name" ] || sed "1s|^#!.*|#!$place/bin/python|" "$script" >"$place/bin/$name"
	chmod 755 "$place/bin/$name"
done
