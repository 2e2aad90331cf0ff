/**
 * A kernel with the FAKE driver of `tests/fakes`: its libcuda and NVML stand for the GPU's. Device files, leases, kernels
 * and `hop gpu` are the real ones.
 */
import { execFileSync } from "node:child_process";
import * as fs from "node:fs";
import * as path from "node:path";
import { KERNEL } from "./lab";
import { REPO, type Site } from "./site";

/** Makes the kernelspec for the node that has the GPU; its name. */
export function fakeGpu(site: Site): string {
  const name = "fake-gpu";
  const fakes = path.join(site.base, "opt/tests/fakes");
  fs.rmSync(fakes, { recursive: true, force: true });
  fs.mkdirSync(path.dirname(fakes), { recursive: true });
  execFileSync("sh", [path.join(REPO, "tests/fakes/build.sh"), fakes]);
  fs.chmodSync(path.join(fakes, "gpu/dev"), 0o777);
  const kernels = path.join(site.base, "opt/share/jupyter/kernels");
  const spec = JSON.parse(fs.readFileSync(path.join(kernels, KERNEL, "kernel.json"), "utf8"));
  spec.display_name = "Python 3 (FAKE GPU)";
  spec.env = {
    ...spec.env,
    FAKE_GPU_DIR: path.join(fakes, "gpu"),
    GRESSHOPPER_LIBCUDA: path.join(fakes, "libcuda.so.1"),
    GRESSHOPPER_LIBNVML: path.join(fakes, "libnvidia-ml.so.1"),
    GRESSHOPPER_DEV_PREFIX: `/dev/fakegpu-${site.gpusAreThere()}-`,
  };
  fs.mkdirSync(path.join(kernels, name), { recursive: true });
  fs.writeFileSync(path.join(kernels, name, "kernel.json"), JSON.stringify(spec));
  return name;
}

/** Says that the work of `WORK` is done. */
export const DONE = "done";

/** A cell whose functions put a number into the memory of the lent GPU, and add to it until a file is there. */
export const WORK = `
import ctypes, glob, os, time
cuda = ctypes.CDLL(os.environ["GRESSHOPPER_LIBCUDA"])
context, at, number, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t(8)
def lent(path):
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
def begin():
    fake = os.environ["FAKE_GPU_DIR"]
    (device,) = filter(lent, glob.glob(os.environ["GRESSHOPPER_DEV_PREFIX"] + "*"))
    with open(f"{fake}/minor", "w") as file:
        file.write(device.rsplit("-", 1)[1])
    os.remove(f"{fake}/dev/nvidia0")
    os.symlink(device, f"{fake}/dev/nvidia0")
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), size) == 0
    assert cuda.cuMemsetD8_v2(at, ctypes.c_ubyte(0), size) == 0
def read():
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(number), at, size) == 0
    return number.value
def work():
    added = 0
    while added == 0 or not os.path.exists("${DONE}"):
        number.value = read() + 1
        assert cuda.cuMemcpyHtoD_v2(at, ctypes.byref(number), size) == 0
        added += 1
        time.sleep(0.002)
    os.remove("${DONE}")
    return read() == added
`;
