"""Kubernetes: its declaration, the client that runs kubectl, and the names that both use."""

import re
from hashlib import sha256

MPIJOB_FILE = "mpijob.yaml"

# The operator appends "-launcher" and five random characters to a job's name, and a pod's host name has
# 63 characters at most (RFC 1123).
_NAME_LENGTH = 48


def object_name(run_id: str) -> str:
    """Return the name of a run's objects: that of a Service begins with a letter (RFC 1035)."""
    name = re.sub(r"[^a-z0-9]+", "-", f"hpcprof-{run_id}".lower()).strip("-")
    if len(name) > _NAME_LENGTH or name != f"hpcprof-{run_id}":
        digest = sha256(run_id.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        name = f"{name[: _NAME_LENGTH - 9].rstrip('-')}-{digest}"
    return name
