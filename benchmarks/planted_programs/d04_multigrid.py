"""Build the multigrid solver with nvcc (once) and run it in this process's place."""

import os
import pathlib
import subprocess
import sys
import tempfile

src = pathlib.Path(__file__).with_suffix(".cu").resolve()
out = pathlib.Path(tempfile.gettempdir()) / f"multigrid_{os.getuid()}"
if not out.exists() or out.stat().st_mtime < src.stat().st_mtime:
    made = out.with_suffix(f".{os.getpid()}")
    subprocess.run(["nvcc", "-O3", "-arch=sm_90", "-std=c++17", "-o", str(made), str(src)], check=True)
    made.replace(out)
if "--build-only" not in sys.argv:
    os.execv(out, [str(out), *sys.argv[1:]])
