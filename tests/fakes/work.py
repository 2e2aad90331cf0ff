"""A cell for a kernel with the FAKE driver: a number in the memory of the lent GPU, and work that adds to the number until a
file `stop` is there."""

import ctypes
import glob
import os
import time

cuda = ctypes.CDLL(os.environ["GRESSHOPPER_LIBCUDA"])
context, at, number = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
size = ctypes.c_size_t(8)


def lent(path):
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def begin():
    (device,) = filter(lent, glob.glob(os.environ["GRESSHOPPER_DEV_PREFIX"] + "*"))
    fake = os.environ["FAKE_GPU_DIR"]
    os.remove(f"{fake}/dev/nvidia0")
    os.symlink(device, f"{fake}/dev/nvidia0")
    with open(f"{fake}/minor", "w") as file:
        file.write(device.rsplit("-", 1)[1])
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), size) == 0
    assert cuda.cuMemsetD8_v2(at, ctypes.c_ubyte(0), size) == 0


def read():
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(number), at, size) == 0
    return number.value


def work():
    before, added = read(), 0
    while added == 0 or not os.path.exists("stop"):
        number.value = read() + 1
        assert cuda.cuMemcpyHtoD_v2(at, ctypes.byref(number), size) == 0
        added += 1
        time.sleep(0.002)
    os.remove("stop")
    return read() == before + added
