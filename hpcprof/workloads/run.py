"""Run a built-in workload with a Python that does not have hpcprof, such as the Python of a site.

``python …/hpcprof/workloads/run.py hpcprof.workloads.sequence_parallel …`` finds the package through the path
of this file. The parent folder is not added to ``sys.path``: it is often the ``site-packages`` of another
Python, whose numpy and torch would be loaded. The modules of hpcprof that workloads import need nothing but
the standard library.
"""

import importlib.util
import runpy
import sys
from pathlib import Path


def _main() -> None:
    package = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        package.name, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package.name] = module
    spec.loader.exec_module(module)
    # As with python -m: sys.path must not begin with the folder of this file.
    sys.path[0] = ""
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
