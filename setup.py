"""What is compiled; all else stands in setup.cfg."""

from __future__ import annotations

import sysconfig

from setuptools import Extension, setup

# Loaded by ctypes and free of Python.h, so that one file serves every Python. Without a C compiler hpcprof is
# installed without it, and reads more slowly.
PAGES = Extension(
    "hpcprof.profiles.readers.nsys._sqlite_pages",
    ["hpcprof/profiles/readers/nsys/sqlite_pages.c"],
    extra_compile_args=["-std=c99"],
    optional=True,
    py_limited_api=True,
)
# setuptools does not give a wheel this name where Python has no lock: it is then of that Python alone.
EVERY_PYTHON = (
    {} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"bdist_wheel": {"py_limited_api": "cp310"}}
)

setup(ext_modules=[PAGES], options=EVERY_PYTHON)
