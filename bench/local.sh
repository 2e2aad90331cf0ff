# Sourced by the benches of kernels without Slurm, with the checkout as `here`: a home of their own with the kernelspec
# `ours`, and the Python parts compiled as a site has them. Users can't write there, and a kernel that compiles its part
# at each start is not what a site has.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
target=${CARGO_TARGET_DIR:-$here/target}/${PROFILE:-release}
export HOME=$place JUPYTER_PATH=$place/share/jupyter GRESSHOPPER_PYTHON=$place/python
export PATH=$target:$PATH PYTHONPATH=$place/jupyter
hub=/opt/gresshopper-dev/hub/bin
user=/opt/gresshopper-dev/user/bin
mkdir "$place/python"
cp -r "$here/kernel/python/gresshopper" "$place/python/"
cp "$target/libhop_tracker.so" "$place/python/gresshopper/"
cp -r "$here/jupyterhub-spawner" "$place/source"
"$hub/pip" install -q --no-deps --no-build-isolation --no-compile --disable-pip-version-check --root-user-action=ignore \
	--target "$place/jupyter" "$place/source" >&2
for python in "$hub/python" "$user/python"; do
	"$python" -m compileall -q "$place/python" "$place/jupyter"
done
hop kernelspec install --prefix "$place" --local --python "$hub/python" --name ours >&2
