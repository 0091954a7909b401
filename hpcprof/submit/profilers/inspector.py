"""NCCL's Inspector, a plug-in of NCCL (2.28 and later) that notes every collective and message.

NCCL loads one such plug-in at a time. The Inspector's defaults lose much: it writes when the communicator
ends, keeps the last 1,024 operations, and leaves out those of less than 8 KiB.
"""

from hpcprof.common.errors import UsageError
from hpcprof.common.paths import script_beside
from hpcprof.submit.profilers.base import OUTPUT, SCRATCH, Profiler, Setting, Settings, Target, whole_number
from hpcprof.submit.sites.model import Vendor

_NO_LOG = "the Inspector wrote no log"


def _check(target: Target, settings: Settings) -> None:
    if target.captures:
        sentence = "--profiler inspector records every step: leave --capture-steps out."
        raise UsageError(sentence, "profiler", "capture_steps")
    whole_number(settings, "smallest", 0)


def _environment(target: Target, settings: Settings) -> dict[str, str]:
    return {
        "NCCL_PROFILER_PLUGIN": settings["plugin"],
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_DUMP_DIR": f"{SCRATCH}/inspector",
        "NCCL_INSPECTOR_DUMP_VERBOSE": "1",
        # Events not written when a communicator ends are lost.
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "5000",
        "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES": settings["smallest"],
        "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE": "65536",
        "NCCL_INSPECTOR_DUMP_P2P_RING_SIZE": "65536",
        "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING": "0",
    }


INSPECTOR = Profiler(
    "inspector",
    "NCCL's Inspector: every collective of every step, without a profiler",
    settings={
        "plugin": Setting(
            "libnccl-profiler-inspector.so: its path, or inspector to let NCCL look for it", "inspector"
        ),
        "smallest": Setting("the minimum size of noted messages in bytes", "0"),
    },
    foreign={"trace": "records NCCL alone", "export": "writes what is read: JSON"},
    check=_check,
    environment=_environment,
    afterwards=lambda target, settings: [
        ("/bin/sh", "-c", script_beside(__file__), "hpcprof", f"{SCRATCH}/inspector", OUTPUT)
    ],
    complaint=lambda text: (
        f": {text[text.index(_NO_LOG) :].partition(chr(10))[0]}" if _NO_LOG in text else ""
    ),
    needs_gpus=lambda settings: True,
    vendors=(Vendor.NVIDIA,),
)
