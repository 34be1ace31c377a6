"""Program that tries the GPUs it can see through CUDA's driver library, without torch.

Print the result code of CUDA for each GPU as a JSON list (0: it works); null: there is no driver
library. It is run as a file, in isolated mode: it imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import json
import sys

_NO_DEVICE = 100
_SIZE = 1 << 20
_PATTERN = 0xA5
_WRONG_DATA = -1
"""Code of this program: memory of the GPU did not hold what was written to it."""


def check(cuda: ctypes.CDLL) -> list[int]:
    """Return the result code of each visible GPU; one code if CUDA cannot be initialised."""
    count = ctypes.c_int()
    code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if code:
        return [code]
    return [_use(cuda, index) for index in range(count.value)] or [_NO_DEVICE]


def _use(cuda: ctypes.CDLL, index: int) -> int:
    """Write to memory of a GPU and read it back; return the first error, or 0."""
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    found = (ctypes.c_ubyte * _SIZE)()
    size = ctypes.c_size_t(_SIZE)
    code = (
        cuda.cuDeviceGet(ctypes.byref(device), index)
        or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        or cuda.cuCtxSetCurrent(context)
        or cuda.cuMemAlloc_v2(ctypes.byref(memory), size)
        or cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(_PATTERN), size)
        or cuda.cuCtxSynchronize()
        or cuda.cuMemcpyDtoH_v2(found, memory, size)
    )
    if not code and bytes(found) != bytes([_PATTERN]) * _SIZE:
        return _WRONG_DATA
    return int(code)


def main() -> None:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        codes = None
    else:
        codes = check(cuda)
    print(json.dumps(codes))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
