"""Runs a program of PyTorch as one rank of a larger job: ``python role.py RANK SIZE FILE …``.

The file imports nothing of hpcprof, so that the program's own Python can run it.

`torch.distributed` gets the backend ``fake`` of PyTorch, whatever backend the program asks for: collectives
and messages return at once, and leave in their buffers what the rank has put there. Gradients of
DistributedDataParallel, which needs tensors from its backend, pass through a hook that does nothing.
"""

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_BACKEND = "fake"


def run_as(rank: int, size: int, program: Sequence[str]) -> None:
    """Run a Python program (a file or ``-m MODULE``, and arguments) as one rank of ``size``."""
    environment = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": 1}
    os.environ.update({name: str(value) for name, value in environment.items()}, MASTER_ADDR="127.0.0.1")
    module = program[0] == "-m"
    sys.argv[:] = program[1:] if module else program
    sys.path[0] = str(Path.cwd() if module else Path(program[0]).resolve().parent)
    _fake_process_groups(rank, size)
    if module:
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program[0], run_name="__main__")


def _fake_process_groups(rank: int, size: int) -> None:
    """Let all process groups of this process have the fake backend."""
    from torch import distributed
    from torch.distributed import device_mesh, distributed_c10d
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
    from torch.nn.parallel import DistributedDataParallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    begin, group = distributed_c10d.init_process_group, distributed_c10d.new_group

    def init_process_group(*arguments: Any, **options: Any) -> None:
        begin(_BACKEND, rank=rank, world_size=size, store=FakeStore())

    def new_group(*arguments: Any, **options: Any) -> Any:
        ranks = options.get("ranks", arguments[0] if arguments else None)
        return group(ranks, backend=_BACKEND)

    begin_parallel, register = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook

    def parallel(self: DistributedDataParallel, *arguments: Any, **options: Any) -> None:
        begin_parallel(self, *arguments, **options)
        register(self, None, noop_hook)

    replaced: dict[str, Callable[..., Any]] = {
        "init_process_group": init_process_group,
        "new_group": new_group,
    }
    for module in (distributed, distributed_c10d, device_mesh):
        for name, function in replaced.items():
            if hasattr(module, name):
                setattr(module, name, function)
    DistributedDataParallel.__init__ = parallel  # type: ignore[method-assign]
    for name in ("register_comm_hook", "_register_builtin_comm_hook"):
        setattr(DistributedDataParallel, name, lambda *arguments: None)


if __name__ == "__main__":
    run_as(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
