"""The PyTorch profiler, which runs inside the program.

The built-in workloads start and stop it themselves (`hpcprof.workloads.capture`); a program of the user's can
use the same class, and in one that does not, a start-up hook does it (`hpcprof.node.hooks.torch_hook`). The
settings reach them as one JSON object in the environment.
"""

import json
from pathlib import Path
from types import ModuleType

from hpcprof.common.errors import UsageError
from hpcprof.node import hooks, pulse
from hpcprof.submit.profilers import base
from hpcprof.submit.profilers.base import Profiler, Setting, Settings, Target

_SCHEDULE = ("wait", "warmup", "active", "repeat")
_SWITCHES = ("record_shapes", "profile_memory", "with_stack", "with_flops")
_BOOLEAN = ("false", "true")


def _check(target: Target, settings: Settings) -> None:
    wait, warmup, active, _ = (base.whole_number(settings, key, 0) for key in _SCHEDULE)
    if (wait or warmup) and not active:
        advice = "wait and warmup precede active steps; give --profiler-option active=N"
        raise UsageError(f"the schedule of the torch profiler records nothing: {advice}.")
    if "://" in settings["log_dir"]:
        folder, advice = settings["log_dir"], "leave it out, and copy the run's profiles afterwards"
        sentence = f"--profiler-option log_dir={folder}: the ranks copy to folders only; {advice}."
        raise UsageError(sentence, "profiler_options.log_dir")
    if active and target.captures:
        sentence = "--capture-steps and a schedule (active=N) both choose steps: give one of them."
        raise UsageError(sentence, "capture_steps", "profiler_options.active")


def _environment(target: Target, settings: Settings) -> dict[str, str]:
    values: dict[str, int | bool] = {key: int(settings[key]) for key in _SCHEDULE}
    values.update({key: settings[key] == "true" for key in _SWITCHES})
    return {"HPCPROF_TORCH_OPTIONS": json.dumps(values)}


def _afterwards(target: Target, settings: Settings) -> list[tuple[str, ...]]:
    folder = settings["log_dir"]
    return [("mkdir", "-p", folder), ("cp", f"{base.OUTPUT}.trace.json.gz", folder)] if folder else []


_FOLDER = Path(hooks.__file__).parent


def start_up_modules(*recorders: str) -> dict[str, str]:
    """Return the files that Python runs when it starts, and the modules of a recorder that they load."""
    files = {"sitecustomize.py": "sitecustomize.py", "hpcprof_start.py": "start.py"}
    names = ("__init__.py", "window.py", *recorders) if recorders else ()
    for path in (path for name in names for path in sorted(_FOLDER.glob(name))):
        file = str(path.relative_to(_FOLDER))
        files[f"{hooks.PACKAGE}/{file}"] = file
    return {name: (_FOLDER / file).read_text(encoding="utf-8") for name, file in files.items()}


def module_source(module: ModuleType) -> str:
    """Return the text of a module that a run gets a copy of."""
    return Path(str(module.__file__)).read_text(encoding="utf-8")


def start_up(target: Target) -> dict[str, str]:
    """Return the hook that counts the steps of programs which may not mark them, as the workloads do."""
    if target.workload is not None:
        return {}
    # It has what counts the steps of optimizers.
    return {base.PULSE: module_source(pulse), **start_up_modules("torch_hook/*.py")}


def optional_start_up(target: Target) -> dict[str, str]:
    """Return the same hook for a profiler that also works without it."""
    return {} if target.no_hook else start_up(target)


TORCH = Profiler(
    "torch",
    "the PyTorch profiler, CPU and GPU",
    settings={
        "wait": Setting("steps that each cycle skips first", "0"),
        "warmup": Setting("steps that are traced and dropped while the profiler starts up", "0"),
        "active": Setting("steps that each cycle records; 0 records all measured steps", "0"),
        "repeat": Setting("number of cycles; 0 repeats to the end", "1"),
        "record_shapes": Setting("record the shapes of inputs", "false", _BOOLEAN),
        "profile_memory": Setting("record allocations", "false", _BOOLEAN),
        "with_stack": Setting("record Python stacks", "false", _BOOLEAN),
        "with_flops": Setting("estimate FLOPs", "false", _BOOLEAN),
        "log_dir": Setting("a folder that receives a copy of the traces"),
    },
    check=_check,
    environment=_environment,
    afterwards=_afterwards,
    stacks={"with_stack": "true"},
    start_up=start_up,
    complaint=base.no_trace,
    # Log lines of the profiler's library at start and stop; its warnings and errors are not left out.
    chatter=r"(INFO|STAGE|USDT):\d{4}-\d\d-\d\d ",
    suffix=".trace.json.gz",
)
