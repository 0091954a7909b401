"""The ranks of profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hpcprof.common.errors import DamagedInput, HpcprofError
from hpcprof.profiles.readers.declaration import ProfilePart, SeveralRanks, rank_from_name
from hpcprof.profiles.readers.discovery import reader_of
from hpcprof.results.collect import profile_ranks
from hpcprof.results.collect.executors.interface import Lost, ResultT, TaskT
from hpcprof.results.collect.profile_ranks import profiles_by_rank

TWO = SeveralRanks(((11,), (12,)))
MPI = SeveralRanks(((11,), (12,)), (4, 7))


@pytest.fixture(autouse=True)
def identified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the rank from the name: ``3.x``, or none; a ``damaged`` file cannot be read.

    The suffix ``.two`` stands for two processes, ``.mpi`` for the MPI ranks 4 and 7,
    ``.alone`` for rank 0 of 1, and ``.inner`` for rank 1 of a job inside a rank.
    """

    def rank(path: Path) -> int | None:
        if path.stem == "damaged":
            raise DamagedInput(f"{path} is damaged.")
        if path.suffix in (".alone", ".inner"):
            return int(path.suffix == ".inner")
        return int(path.stem) if path.stem.isdigit() else None

    monkeypatch.setattr(profile_ranks, "file_to_read", lambda path: path)
    monkeypatch.setattr(profile_ranks, "identify_rank", rank)
    several = {".two": TWO, ".mpi": MPI}
    monkeypatch.setattr(profile_ranks, "several_ranks", lambda path: several.get(path.suffix))


def test_a_single_profile_without_a_rank_is_rank_0() -> None:
    assert profiles_by_rank([Path("a.x")]).paths == {0: Path("a.x")}


def test_a_second_profile_of_a_rank_is_left_out_beside_other_ranks() -> None:
    found = profiles_by_rank([Path("0.x"), Path("0.y"), Path("1.x")])
    assert found.paths == {0: Path("0.x"), 1: Path("1.x")}
    assert found.left_out == ["0.y is left out: 0.x is a profile of rank 0 too"]


def test_a_profile_whose_name_tells_its_rank_comes_before_others_of_the_rank() -> None:
    names = ("a.alone", "rank0.alone", "1.x")
    found = profiles_by_rank([Path(name) for name in names])
    assert found.paths == {0: Path("rank0.alone"), 1: Path("1.x")}
    assert found.left_out == ["a.alone is left out: rank0.alone is a profile of rank 0 too"]


@pytest.mark.parametrize(
    "names",
    [
        # The names of torchtune (pytorch/torchtune#2504), PyTorch's own, and a counter at the end.
        [
            "r0-2025-3-17-14-3.174222023534.x",
            "r1-2025-3-17-14-3.174222023531.x",
            "r2-2025-3-17-14-4.174222023532.x",
        ],
        ["node0_91.1742220235345.pt.x", "node0_100.1742220235344.pt.x", "node1_17.1742220235340.pt.x"],
        ["a_91.1742220235345.pt.x", "bc_17.1742220235340.pt.x"],
        ["part.a0.x", "part.a1.x", "part.a2.x"],
        # Servers beside each other, each rank 0 of its own program (vllm-project/tpu-inference#2945).
        ["worker_0.pt.alone", "worker_1.pt.alone"],
    ],
)
def test_names_that_count_ranks_or_processes_number_profiles_without_ranks(names: list[str]) -> None:
    found = profiles_by_rank([Path(name) for name in reversed(names)])
    assert [found.paths[rank].name for rank in range(len(names))] == names
    assert "numbered by the names" in found.left_out[0]


@pytest.mark.parametrize(
    "names", [["a.x", "b.x"], ["run1.x", "run2.x"], ["n_5.174222023534.x", "n_5.174222023535.x"]]
)
def test_names_that_count_nothing_number_no_ranks(names: list[str]) -> None:
    with pytest.raises(HpcprofError, match=r"the rank of .* is unknown"):
        profiles_by_rank([Path(name) for name in names])


def test_a_damaged_profile_is_named_and_the_others_keep_their_ranks() -> None:
    found = profiles_by_rank([Path("3.x"), Path("damaged.x"), Path("1.x")], jobs=2)
    assert found.paths == {3: Path("3.x"), 1: Path("1.x")}
    assert found.skipped == ["damaged.x is damaged."]


def test_a_file_that_is_no_profile_does_not_make_the_rank_of_another_unknown() -> None:
    found = profiles_by_rank([Path("a.x"), Path("damaged.x")])
    assert found.paths == {0: Path("a.x")}
    assert found.skipped == ["damaged.x is damaged."]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("a.x", "b.x"), "the rank of a.x is unknown"),
        (("1.x", "1.y"), "two profiles of rank 1: 1.x and 1.y; remove one.$"),
        (("rank0.alone", "rank00.alone"), "two profiles of rank 0: .*; remove one.$"),
        (("rank0.alone", "rank1.alone"), "remove one, or .* use the mpiexec of the program's MPI"),
        (
            ("rank0.inner", "rank1.inner"),
            "remove one, or if both are of one job, let its ranks start no other ranks",
        ),
        (("node7.alone", "node8.alone"), "remove one, or .* use the mpiexec of the program's MPI"),
    ],
)
def test_profiles_that_cannot_be_told_apart_are_refused(names: tuple[str, str], says: str) -> None:
    with pytest.raises(HpcprofError, match=says):
        profiles_by_rank([Path(name) for name in names])


@pytest.mark.parametrize(
    ("names", "new"),
    [
        (("a.sqlite", "0.sqlite"), "rank00001.sqlite"),
        (("a.pt.trace.json.gz", "1.sqlite"), "rank00000.trace.json.gz"),
        (("a.csv.gz", "0.sqlite", "1.nsys-rep"), "rank00002.csv.gz"),
    ],
)
def test_the_suggested_name_keeps_the_kind_of_a_profile_and_has_a_free_rank(
    names: tuple[str, ...], new: str
) -> None:
    found = profiles_by_rank([Path(name) for name in names])
    (sentence,) = found.left_out
    assert sentence.startswith(f"{names[0]} is left out") and sentence.endswith(f"for example to {new}")
    assert [path.name for path in found.paths.values()] == [*names[1:]]
    assert rank_from_name(Path(new)) is not None
    assert reader_of(Path(new)) is reader_of(Path(names[0]))


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["a.two"], {0: ("a.two", ProfilePart(TWO, 0)), 1: ("a.two", ProfilePart(TWO, 1))}),
        (["0.two"], {0: ("0.two", ProfilePart(TWO, 0)), 1: ("0.two", ProfilePart(TWO, 1))}),
        (
            ["0.two", "1.two"],
            {2 * i + at: (f"{i}.two", ProfilePart(TWO, at)) for i in (0, 1) for at in (0, 1)},
        ),
        (["3.two"], {3: ("3.two", ProfilePart(TWO, merged=True))}),
        (["0.two", "1.x"], {0: ("0.two", ProfilePart(TWO, merged=True)), 1: ("1.x", None)}),
        (
            ["a.mpi", "0.x"],
            {4: ("a.mpi", ProfilePart(MPI, 0)), 7: ("a.mpi", ProfilePart(MPI, 1)), 0: ("0.x", None)},
        ),
    ],
)
def test_a_profile_of_several_ranks_is_listed_for_each_unless_their_numbers_cannot_be_told(
    names: list[str], ranks: dict[int, tuple[str, ProfilePart | None]]
) -> None:
    found = profiles_by_rank([Path(name) for name in names])
    assert found.paths == {rank: Path(name) for rank, (name, _) in ranks.items()}
    assert found.parts == {rank: part for rank, (_, part) in ranks.items() if part}


def test_profiles_of_a_process_that_was_killed_are_named() -> None:
    def killed(
        function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost]]:
        yield from ((task, Lost("its process was killed")) for task in tasks)

    found = profiles_by_rank([Path("1.x"), Path("2.x")], killed)
    assert (found.paths, len(found.skipped)) == ({}, 2)
    assert found.skipped[0] == "1.x was not collected: its process was killed."
