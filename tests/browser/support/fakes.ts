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
export const DONE = "stop";

/** A cell whose functions put a number into the memory of the lent GPU, and add to it until that file is there. */
export const WORK = fs.readFileSync(path.join(REPO, "tests/fakes/work.py"), "utf8");
