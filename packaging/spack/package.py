"""Spack package of hpcprof. It has not been built: see README.md beside it."""

from spack.package import *


class PyHpcprof(PythonPackage):
    """Batch submission and profiling for HPC: renders the job script of a site, profiles the right ranks, and
    explains from the profiles of all ranks where step time is lost."""

    license("MIT")

    version("develop")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@64:", type="build")
    depends_on("py-click@8.1:", type=("build", "run"))
    depends_on("py-jinja2@3.1:", type=("build", "run"))
    depends_on("py-msgspec@0.19:", type=("build", "run"))
    depends_on("py-numpy@1.24:", type=("build", "run"))
    depends_on("py-pandas@2.0:", type=("build", "run"))
    depends_on("py-pyarrow@17:", type=("build", "run"))
    depends_on("py-pyyaml@6.0:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-scipy@1.11:", type=("build", "run"))
    depends_on("py-sqlalchemy@2.0:", type=("build", "run"))
