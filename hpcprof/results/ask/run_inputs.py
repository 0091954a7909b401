"""Gather the inputs of analyses that span runs, from the store and from the directory of each run."""

from datetime import datetime

import numpy as np

from hpcprof.analysis.framework.run_data import ENVIRONMENT, RunData
from hpcprof.common.masking import MASK, is_secret, masked, masked_command
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.readers.discovery import content_of
from hpcprof.profiles.readers.environment_allowlist import RANK_NUMBERS
from hpcprof.profiles.readers.results import read_results
from hpcprof.profiles.timeline import Ints
from hpcprof.results.ask.tables import RunTables
from hpcprof.results.collect.run_names import command_line, typed_run
from hpcprof.results.collect.timelines import timeline_reader
from hpcprof.results.store.store import Store
from hpcprof.results.store.tables import ProfileRow, RunRow
from hpcprof.runs.directory import Run
from hpcprof.runs.live_steps import noted_steps
from hpcprof.workloads.schema import RankResult

_COMMIT_DIGITS = 12


def run_data(run: Run, store: Store) -> RunData:
    """Gather the inputs of an analysis for one run; its tables are empty if it has not been collected."""
    profiles = store.profiles(run.id) if store.exists() else {}
    results = read_results(run.outputs()).ranks
    timelines = {rank: p for rank, p in profiles.items() if content_of(p.kind) is ProfileContent.TIMELINE}
    first = results[0] if results else None
    options = run.manifest.job.program_options if run.manifest else {}
    return RunData(
        id=run.id,
        facts=_facts(run, first, profiles, store),
        parameters={**first.parameters, "mode": first.mode} if first else {},
        own_step_ns=_slowest_ranks(_own_steps(results) or [noted_steps(run)]),
        tables=RunTables(run, store).frames,
        timeline_ranks=tuple(timelines),
        read=timeline_reader(run, store),
        submitted=datetime.fromisoformat(run.manifest.created) if run.manifest else None,
        options={name: MASK if is_secret(name) else masked(value) for name, value in options.items()},
        collect_command=command_line(store, "collect", typed_run(run)),
    )


def _facts(
    run: Run, result: RankResult | None, profiles: dict[int, ProfileRow], store: Store
) -> dict[str, str | int | None]:
    job = run.manifest.job if run.manifest else None
    row = (store.run(run.id) if profiles else None) or RunRow(run.id, str(run.path))
    gpus = store.gpus(run.id) if profiles else []
    names = sorted({gpu.name for gpu in gpus})
    clocks = sorted({gpu.clock_hz for gpu in gpus if gpu.clock_hz})
    kinds = sorted({profile.kind for profile in profiles.values()})
    git = run.manifest.git if run.manifest else None
    workload = (job.workload or job.name) if job else row.workload
    program = row.program or (job.program if job else None)
    ranks = (result.world_size if result else None) or row.ranks or (job.ranks if job else len(profiles))
    return {
        "program": program or (result.workload if result else None),
        "workload": workload or (result.workload if result else None),
        "arguments": masked_command(job.arguments) if job else None,
        "site": job.site if job else row.site,
        "ranks": ranks or None,
        "nodes": job.nodes if job else len({profile.host for profile in profiles.values()}) or None,
        "profiler": job.profiler if job else ", ".join(kinds) or (result.profiler if result else None),
        "GPU": ", ".join(names) or (result.device if result else None),
        "GPU clock": ", ".join(f"{hertz / 1e6:.0f} MHz" for hertz in clocks) or None,
        "profiler version": ", ".join(sorted({p.profiler_version or "" for p in profiles.values()})) or None,
        "hpcprof": run.manifest.hpcprof_version if run.manifest else None,
        "commit": f"{git.commit[:_COMMIT_DIGITS]}{' with changes' if git.dirty else ''}" if git else None,
        **(_recorded_facts(store.common_facts(run.id)) if profiles else {}),
    }


def _recorded_facts(facts: dict[tuple[str, str], str]) -> dict[str, str]:
    """Return the recorded facts about software, machine and environment, by name.

    The variables that number ranks are left out: they are common facts only where one rank was profiled.
    """
    prefixes = {"version": "", "machine": "", "environment": ENVIRONMENT}
    return {
        f"{prefixes[kind]}{name}": value
        for (kind, name), value in facts.items()
        if kind in prefixes and name not in RANK_NUMBERS
    }


def _own_steps(results: list[RankResult]) -> list[list[int]]:
    if not results:
        return []
    modes = list(results[0].modes.values())
    latency = modes[0].latency_ns if modes else results[0].latency_ns
    return [latency] if latency else [result.step_ns for result in results]


def _slowest_ranks(times: list[list[int]]) -> Ints:
    if not times:
        return np.empty(0, np.int64)
    steps = min(map(len, times))
    slowest: Ints = np.array([rank_times[:steps] for rank_times in times], np.int64).max(axis=0)
    return slowest
