"""``hpcprof scrub``."""

from pathlib import Path

import click

from hpcprof.cli.completion import complete_files
from hpcprof.cli.conventions import command_with_examples, echo, exit_naming
from hpcprof.cli.options import output_option
from hpcprof.common.errors import HpcprofError


@command_with_examples("scrub", "hpcprof scrub runs/20261121-143005-ddp-3fa9/profiles/*.sqlite -o shared")
@output_option("Folder for the copies; no file in it is replaced.", required=True)
@click.argument("files", nargs=-1, required=True, metavar="FILE…", shell_complete=complete_files)
def command(output: Path, files: tuple[str, ...]) -> None:
    """Copy profiles with private data removed.

    FILE is a *.sqlite of Nsight Systems, a *.json[.gz] of PyTorch, a *.db or *_results.json[.gz] of
    rocprofv3, a chrome_trace.json or *.unitrace.json of unitrace, a *.csv[.gz] of Nsight Compute, a *.pickle
    of PyTorch's memory, or a file from stall/ or telemetry/ of a run. A run id, a name that means one run, a
    path, or last means all profiles of the run.

    The copies contain no host, user or path, and of the environment only ranks, NCCL's settings and the like.
    Every analysis gives the same figures. The names of kernels, API functions and ranges stay, with paths in
    them replaced by numbers.
    """
    from hpcprof.cli.progress import ProgressLine
    from hpcprof.profiles.scrub.files import REMAINS, scrub_files

    paths = [path for word in files for path in _files_of(word)]
    with ProgressLine(on_error_output=True) as progress:
        result = scrub_files(paths, output, lambda path: progress.update(f"reading {path}"))
    for path, left_out in result.written:
        echo(f"wrote {path}; left out: {', '.join(left_out) or 'nothing'}")
    for sentence in result.warnings:
        echo(f"hpcprof: {sentence}", err=True)
    if result.written:
        echo(f"hpcprof: {REMAINS}", err=True)
    exit_naming(result.skipped)


def _files_of(word: str) -> list[Path]:
    """Return a file, or the profiles of a run: of reports of Nsight Systems, the exports."""
    if Path(word).is_file():
        return [Path(word)]
    from hpcprof.profiles.readers.discovery import file_to_read
    from hpcprof.results.collect.run_names import find_known_runs
    from hpcprof.results.collect.run_profiles import profiles_of
    from hpcprof.results.store.store import open_store
    from hpcprof.runs.directory import runs_directory

    runs = find_known_runs([word], runs_directory(), open_store(None, runs_directory()))
    profiles = [file_to_read(path) for run in runs for path in profiles_of(run)]
    if not profiles:
        raise HpcprofError(f"{word} has no profiles to scrub.")
    return profiles
