#!/bin/sh
# Builds the fake libcuda.so.1 and libnvidia-ml.so.1 into a directory, with a fake GPU beside them in gpu/.
# usage: build.sh DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: build.sh DIR}
mkdir -p "$out/gpu/dev"
chmod 0777 "$out/gpu"
set -- -std=gnu11 -O1 -Wall -Wextra -Wno-unused-function -Wno-unused-variable -fPIC -shared -fvisibility=hidden
"${CC:-cc}" "$@" -o "$out/libcuda.so.1" "$here/fake_libcuda.c" -pthread
"${CC:-cc}" "$@" -o "$out/libnvidia-ml.so.1" "$here/fake_libnvml.c"
: >"$out/gpu/dev/nvidia0"
: >"$out/gpu/dev/nvidiactl"
chmod 0666 "$out/gpu/dev/nvidia0" "$out/gpu/dev/nvidiactl"
