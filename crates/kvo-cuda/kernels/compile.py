"""Compiles a CUDA source to PTX with NVRTC 12.1, and prints it. `cargo xtask ptx` runs this.

    python3 compile.py SOURCE [OPTION...]

NVRTC comes from the wheel nvidia-cuda-nvrtc-cu12 of this Python. Needs no GPU and no driver. Exits with status 3 if there
is no NVRTC 12.1: another version prints other text, and newer text is refused by older drivers.
"""

import ctypes
import os
import sys

NO_NVRTC = 3
LIBRARY = os.path.join("nvidia", "cuda_nvrtc", "lib", "libnvrtc.so.12")
VERSION = (12, 1)


def no_nvrtc(why):
    print(why, file=sys.stderr)
    sys.exit(NO_NVRTC)


def load():
    paths = [os.path.join(entry, LIBRARY) for entry in sys.path]
    path = next((path for path in paths if os.path.exists(path)), None)
    if path is None:
        no_nvrtc("the wheel nvidia-cuda-nvrtc-cu12 is not installed")
    nvrtc = ctypes.CDLL(path)
    major, minor = ctypes.c_int(), ctypes.c_int()
    check(nvrtc, nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    if (major.value, minor.value) != VERSION:
        no_nvrtc(f"NVRTC is {major.value}.{minor.value}, not {VERSION[0]}.{VERSION[1]}")
    return nvrtc


def check(nvrtc, result):
    if result != 0:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        sys.exit(f"NVRTC: {nvrtc.nvrtcGetErrorString(result).decode()}")


def text(nvrtc, program, size_of, read):
    """The log or the PTX of a program, without the zero behind it."""
    size = ctypes.c_size_t()
    check(nvrtc, size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    check(nvrtc, read(program, buffer))
    return buffer.value


def compile_to_ptx(nvrtc, source, options):
    with open(source, "rb") as file:
        code = file.read()
    program = ctypes.c_void_p()
    name = os.path.basename(source).encode()
    check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), code, name, 0, None, None))
    options = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    result = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = text(nvrtc, program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    sys.stderr.write(log.decode())
    check(nvrtc, result)
    return text(nvrtc, program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)


if __name__ == "__main__":
    sys.stdout.buffer.write(compile_to_ptx(load(), sys.argv[1], sys.argv[2:]))
