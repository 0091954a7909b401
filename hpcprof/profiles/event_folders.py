"""Folders of a rank's events in a Parquet dataset, and removing those of a run.

Each table is a folder that is partitioned by run and rank, as other programs expect it:
``kernels/run=ID/rank=0/events.parquet``. Beside the tables, ``origins/run=ID/rank=0.jsonl`` describes the
files of a rank, and ``communication/run=ID`` has what the ranks have in common.
"""

import shutil
from pathlib import Path
from urllib.parse import quote

EVENTS = "timeline"
"""The dataset's folder: in a run or, for the profiles of another tool, in the folder of runs."""

PUSHED = "events"
"""The folder in a project of a hub that has a dataset for each pushed package."""

ORIGINS = "origins"
"""The folder of the descriptions."""

COMMUNICATION = "communication"
"""The folder of the matched communication of the ranks of a run."""

FILE = "events.parquet"
"""The name of each Parquet file."""


def run_key(run_id: str) -> str:
    """Return the name of the folders of a run; characters that file names cannot hold are percent-encoded."""
    return f"run={quote(run_id, safe='', errors='surrogateescape')}"


def table_path(folder: Path, table: str, run_id: str, rank: int) -> Path:
    """Return the file of a table, by its name in the dataset."""
    return folder / table / run_key(run_id) / f"rank={rank}" / FILE


def communication_folder(folder: Path, run_id: str) -> Path:
    """Return the folder of the files about the communication of a run."""
    return folder / COMMUNICATION / run_key(run_id)


def origin_path(folder: Path, run_id: str, rank: int) -> Path:
    """Return the file that describes the profiles of a rank."""
    return folder / ORIGINS / run_key(run_id) / f"rank={rank}.jsonl"


def has_run_events(folder: Path, run_id: str) -> bool:
    """Return whether a dataset has files of a run."""
    return (folder / ORIGINS / run_key(run_id)).is_dir()


def pushed_events(project: Path, sha256: str) -> Path:
    """Return the dataset of the package with a SHA-256 in a project of a hub."""
    return project / PUSHED / sha256 / EVENTS


def remove_shared_events(runs_dir: Path, run_id: str, excluded: Path | None = None) -> None:
    """Remove the events of a run from all datasets that runs share, except the ``excluded`` one.

    Raises OSError if a file cannot be removed.
    """
    for dataset in (runs_dir / EVENTS, *(runs_dir / PUSHED).glob(f"*/{EVENTS}")):
        if dataset != excluded:
            remove_run_events(dataset, run_id)
            if dataset.parent != runs_dir and not any(dataset.parent.iterdir()):
                dataset.parent.rmdir()


def remove_run_events(folder: Path, run_id: str) -> None:
    """Remove the events of a run, and the folders that are empty then.

    Raises OSError if a file cannot be removed.
    """
    if not folder.is_dir() or folder.is_symlink():
        return
    for run_folder in sorted(folder.glob(f"*/{run_key(run_id)}")):
        shutil.rmtree(run_folder)
        if not any(run_folder.parent.iterdir()):
            run_folder.parent.rmdir()
    if not any(folder.iterdir()):
        folder.rmdir()
