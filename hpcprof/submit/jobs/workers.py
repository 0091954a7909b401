"""Launchers within the program of a job: what they mean for the job, and what users should know.

torchrun and accelerate start the workers of a node. A job whose command is one of them gets a rank for each
worker, and starts the launcher itself: with the nodes and their rendezvous, and each worker below the rank
wrapper, so that it has its own GPU, logs and profile.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path, PurePath
from typing import Any

import msgspec
import yaml

from hpcprof.common.errors import UsageError
from hpcprof.common.masking import masked_command
from hpcprof.common.yaml_file import read_document
from hpcprof.node import program_words
from hpcprof.node.program_words import (
    LAUNCHERS,
    PYTHON,
    WORKER_LAUNCHERS,
    Command,
    commands,
    launcher_of,
    module_of,
)
from hpcprof.runs.job import Job
from hpcprof.runs.job_name import LAUNCHER_OPTIONS, launcher_options
from hpcprof.submit.sites.model import Site

BY_RANK = "-- bash -c 'case $RANK in 0) exec ./a ;; *) exec ./b ;; esac'"
"""A command by which ranks run several programs."""

_PROFILERS = ("nsys", "ncu", "rocprofv3", "unitrace")
_SUBMITTERS = ("sbatch", "qsub", "bsub")
_CLEANABLE_ENGINES = ("apptainer", "singularity")
_CLEAN_OPTIONS = frozenset(("--cleanenv", "-e", "--containall", "-C"))
"""Options of these engines by which the program gets none of a rank's variables."""
_DIRECTIVE = re.compile(r"^#(SBATCH|PBS|BSUB|flux:|COBALT|MSUB|PJM)\s", re.MULTILINE)


class Workers(msgspec.Struct, frozen=True):
    """A launcher of workers with its own options, the workers of a node, and the program of each."""

    launcher: list[str]
    on_node: int
    program: list[str]


def workers_of(program: Sequence[str], directory: str, nodes: int, gpus: int | None) -> Workers | None:
    """Return the workers that torchrun or accelerate starts on nodes with ``gpus`` GPUs; None if unknown."""
    for command in commands(list(program), directory):
        name = launcher_of(command)
        if name in ("torchrun", "accelerate") and [*command.before, *command.words] == list(program):
            return _split_launcher(command, name, directory, nodes, gpus)
    return None


def _split_launcher(
    command: Command, name: str, directory: str, nodes: int, gpus: int | None
) -> Workers | None:
    arguments = command.words[1:]
    arguments = module_of(arguments)[1:] if PYTHON.fullmatch(command.name) else arguments
    arguments = arguments[1:] if name == "accelerate" and arguments[:1] == ["launch"] else arguments
    start = command.words[: len(command.words) - len(arguments)]
    options, remaining = launcher_options(arguments)
    if not remaining:
        return None
    node_count = options.get("--nnodes") or options.get("--num-machines") or str(nodes)
    if node_count.isdigit() and int(node_count) != nodes:
        raise UsageError(f"{name} is told of {node_count} nodes, and the job has --nodes {nodes}.", "nodes")
    config = _accelerate_config(options, directory) if name == "accelerate" else {}
    count = _workers_per_node(name, options, config, nodes, gpus)
    if count is None or not node_count.isdigit():
        return None
    accelerate_options = []
    for option, value in options.items():
        if "job" not in LAUNCHER_OPTIONS.get(option, ()):
            # accelerate knows underscores alone, and torchrun both.
            accelerate_options += [option[:2] + option[2:].replace("-", "_"), *([value] if value else [])]
    if name == "accelerate":
        # YAML reads a bare NO as false.
        strategy = config.get("distributed_type", "--config-file" in options and "unknown") or "NO"
        is_chosen = any("parallel" in LAUNCHER_OPTIONS.get(option, ()) for option in options)
        if count * nodes > 1 and strategy in ("NO", "MULTI_CPU") and not is_chosen:
            accelerate_options.append("--multi_gpu")
        with_deepspeed = "--use-deepspeed" in options or strategy == "DEEPSPEED"
        if nodes > 1 and with_deepspeed and "--deepspeed-multinode-launcher" not in options:
            accelerate_options += ["--deepspeed_multinode_launcher", "standard"]
    program = _worker_program(command, name, options, remaining)
    return Workers([*command.before, *start, *accelerate_options], count, program)


def _accelerate_config(options: dict[str, str], directory: str) -> dict[str, Any]:
    """Return the settings of ``--config_file`` or of accelerate's default file; empty if unreadable."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface"
    default = Path(os.environ.get("HF_HOME") or cache, "accelerate", "default_config.yaml").expanduser()
    path = Path(directory, options["--config-file"]) if "--config-file" in options else default
    try:
        config = read_document(path)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return config if isinstance(config, dict) else {}


def _workers_per_node(
    name: str, options: dict[str, str], config: dict[str, Any], nodes: int, gpus: int | None
) -> int | None:
    """Return the number of workers on a node; a file of accelerate gives it for its own machines."""
    total, machines = options.get("--num-processes"), str(nodes)
    if total is None and "num_processes" in config:
        total, machines = str(config["num_processes"]), str(config.get("num_machines", 1))
        # ``accelerate config`` proposes 1 for any number of machines.
        total = None if total == "1" and machines not in ("0", "1") else total
    if total is not None:
        if not (total.isdigit() and machines.isdigit() and int(machines)) or int(total) % int(machines):
            return None
        return int(total) // int(machines) or None
    workers = options.get("--nproc-per-node", "gpu" if name == "accelerate" else "1")
    if workers in ("gpu", "auto"):
        return None if "--config-file" in options and not config else gpus
    return int(workers) if workers.isdigit() and int(workers) else None


def _worker_program(command: Command, name: str, options: dict[str, str], words: list[str]) -> list[str]:
    if "--no-python" in options:
        return words
    file = PurePath(command.words[0])
    python = str(file if PYTHON.fullmatch(file.name) else file.with_name("python"))
    module = ["-m"] if options.keys() & {"-m", "--module"} else []
    return [python, *(["-u"] if name == "torchrun" else []), *module, *words]


def _commands_of(job: Job) -> Iterable[Command]:
    """Return the commands that a program of the user's starts."""
    return commands(job.arguments, job.directory) if job.workload is None else []


def launchers_within(job: Job) -> Iterator[tuple[str, Command]]:
    """Yield each launcher within the program of a job, with its command."""
    for command in _commands_of(job):
        if name := launcher_of(command) or (command.name if command.name in _SUBMITTERS else ""):
            yield name, command


def scripts_of(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the scripts of shells and the programs with an interpreter line that a job runs, with text."""
    names: dict[str, bool] = {}
    for command in _commands_of(job):
        names.setdefault(command.words[0], True)
        names.setdefault(command.place.partition(", line ")[0], False)
    for name, is_program in names.items():
        text = program_words.script_text(str(Path(job.directory, name)))
        if text.startswith("#!") or (text and not (is_program or name.endswith((".py", "akefile")))):
            yield name, text


def count_runner_words(job: Job) -> int:
    """Return the number of words of a job's command before the one that runners outside images run.

    It is 0 if that may not be a program: the value of an option, or a file as in ``uv run train.py``.
    """
    before: tuple[str, ...] = ()
    for command in _commands_of(job):
        word = command.words[0]
        is_program = "/" in word or program_words.SHELL.fullmatch(word) or PYTHON.fullmatch(word)
        if is_program and [*command.before, *command.words] == job.arguments:
            before = command.before
    return 0 if program_words.ENGINES.intersection(before) else len(before)


def _clean_options(before: Sequence[str]) -> Iterator[str]:
    """Yield the options of an engine among the words before a program by which it gets no variables."""
    names = [PurePath(word).name for word in before]
    start = next((place for place, name in enumerate(names) if name in _CLEANABLE_ENGINES), len(before))
    # A short one may also be of another program, behind the image.
    first_words = takewhile(lambda word: word.startswith("-"), before[start + 2 :])
    long_words = (word for word in before[start:] if word.startswith("--"))
    yield from _CLEAN_OPTIONS.intersection((*first_words, *long_words))


def launcher_remarks(job: Job, site: Site) -> list[str]:
    """Return remarks on launchers within the program, as sentences without a full stop."""
    sentences = [
        f"the #{directive[1]} lines of {name} have no effect here: give their values as options (--nodes, "
        f"--ranks-per-node, --walltime), or submit {name} itself, with hpcprof run --here as its launcher"
        for name, text in scripts_of(job)
        if (directive := _DIRECTIVE.search(text))
    ]
    words = {PurePath(word).name for command in _commands_of(job) for word in (*command.before, command.name)}
    for name in sorted(words.intersection(_PROFILERS)):
        sentences.append(
            f"hpcprof collects no profile of the {name} in the program, whose ranks may write the same file: "
            f"leave it out, and give --profiler {name}"
        )
    clean = [option for command in _commands_of(job) for option in _clean_options(command.before)]
    if clean and job.ranks > 1:
        numbers = "the numbers of the ranks (RANK, WORLD_SIZE, PMI_RANK)"
        sentences.append(f"{clean[0]} of the container keeps {numbers} from the program: leave it out")
    if job.workers:
        ranks = f"{job.ranks_per_node} on each node" if job.nodes > 1 else str(job.ranks_per_node)
        name = next(filter(None, map(launcher_of, commands(job.workers, job.directory))))
        sentences.append(f"the job starts the workers of {name} as its ranks: {ranks}")
    within = list(launchers_within(job))
    launcher_names = (*WORKER_LAUNCHERS, *_SUBMITTERS)
    starters = [(name, command) for name, command in within if name not in launcher_names]
    several = len(starters) > 1 or any(command.repeated for _, command in starters)
    for name, command in within:
        if name == "dask-mpi":
            sentences.append(_roles_of_dask(job, command))
        elif name in _SUBMITTERS:
            place = f" ({command.place})" if command.place else ""
            sentences.append(
                f"{name}{place} submits another job, which is no part of this run: name that job's program"
            )
        elif name in WORKER_LAUNCHERS:
            place = f" in {command.place}" if command.place else ""
            if job.ranks_per_node > 1:
                sentences.append(
                    f"{name}{place} starts the workers of a node itself, and would run "
                    f"{job.ranks_per_node} times on each: leave --ranks-per-node out"
                )
            else:
                sentences.append(f"{name}{place} {_within_one_rank(name, command, job.nodes)}")
        elif several and starters[0][1].place:
            name, command = starters[0]
            sentences.append(
                f"{name} ({command.place}) starts ranks more than once, within a rank of the job: "
                f"write hpcprof run --here in place of {name}, for a run of each, and submit that script"
            )
        elif command.place:
            sentences.append(
                f"{name} ({command.place}) starts ranks itself, within a rank that the job starts: name the "
                f"program that it runs after --, or give a script with its own {name} to --template"
            )
        else:
            options = _launch_options(name, command, job.nodes)
            sentences.append(
                f"{name} starts the ranks itself, within a rank that the job starts: leave it out "
                f"({options}), or use --template for a script with its own {name}"
            )
    return list(dict.fromkeys(sentences))


def _roles_of_dask(job: Job, command: Command) -> str:
    """Return a remark on the roles that dask-mpi gives the ranks; a program that imports it is the client."""
    imported = len(command.words) == 1
    first = "the scheduler and rank 1 the client" if imported else "the scheduler"
    least = 3 if imported else 2
    if job.ranks < least:
        return (
            f"dask-mpi needs {least} ranks, as it makes rank 0 {first}: give --ranks-per-node {least} or more"
        )
    return f"dask-mpi makes rank 0 {first}; the others work: --profile-ranks {least - 1}-{job.ranks - 1}"


def _within_one_rank(name: str, command: Command, nodes: int) -> str:
    """Return the effect of a worker launcher inside the single rank of a node, and the remedy."""
    words = {word.partition("=")[0].replace("_", "-") for word in command.words}
    shared = {"--nnodes", "--num-machines", "--hostfile", "--address", "--world-size"}
    apart = nodes > 1 and not words & shared
    does = "starts workers that share the log and the profile of one rank"
    if apart:
        does += f", and the {nodes} nodes run apart"
    if name == "ray":
        if command.words[1:2] == ["job"]:
            joined = "ray symmetric-run --address $MASTER_ADDR:PORT -- PROGRAM"
            return (
                f"gives the program to a cluster of Ray, where it is part of no rank: start both by {joined}"
            )
        joined = f"ray symmetric-run --address $MASTER_ADDR:PORT --min-nodes {nodes} -- PROGRAM"
        return f"{does}: newer versions join them by {joined}" if apart else does
    if name in ("torchrun", "accelerate"):
        return f"{does}: name it after -- with the number of its workers, and the job starts each as a rank"
    if name == "deepspeed" and nodes > 1 and "--hostfile" in words and "--no-ssh" not in words:
        does += f", and each of the {nodes} nodes starts those of all hosts"
    variables = "RANK, LOCAL_RANK and WORLD_SIZE"
    variables += " in place of --local_rank" if name == "deepspeed" else ""
    return f"{does}: leave it out (--ranks-per-node N -- python PROGRAM); ranks have {variables}"


def _launch_options(name: str, command: Command, nodes: int) -> str:
    """Return the options of a job that replace a launcher's numbers of nodes and ranks, and the program."""
    if {":", "--multi-prog"}.intersection(command.words):
        return f"--ranks-per-node N {BY_RANK}"
    options, words = launcher_options(command.words[2 if LAUNCHERS.get(name) else 1 :])
    count = (options.get("-N") or options.get("--nodes") or "") if name in ("srun", "flux") else ""
    node_count = int(count) if count.isdigit() and int(count) else nodes
    total = next((options[key] for key in ("-n", "-np", "--ntasks", "--n") if options.get(key)), "")
    on_node = str(int(total) // node_count) if total.isdigit() and int(total) % node_count == 0 else "N"
    program = masked_command([*command.before, *words]) if words else "PROGRAM"
    nodes_option = f"--nodes {node_count} " if node_count != nodes else ""
    return f"{nodes_option}--ranks-per-node {on_node} -- {program}"
