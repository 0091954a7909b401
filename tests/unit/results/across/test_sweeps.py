"""The points of a sweep."""

from __future__ import annotations

import pytest

from hpcprof.results.across.sweeps import differing_words


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        (["train.py --lr 0.1 --size 4", "train.py --lr 0.2 --size 8"], ["lr=0.1 size=4", "lr=0.2 size=8"]),
        (["train.py --lr=0.1", "train.py --lr=0.2"], ["lr=0.1", "lr=0.2"]),
        (["solver 64", "solver 128"], ["64", "128"]),
        (["a -x", "a"], ["a -x", "a"]),
        (["a -x 1", "a -y 1"], ["x", "y"]),
    ],
)
def test_a_point_is_named_by_the_words_that_differ(commands: list[str], words: list[str]) -> None:
    assert differing_words([command.split() for command in commands]) == words


def test_values_without_options_have_the_names_of_their_places_in_the_sweep() -> None:
    template = ["./solver", "{n}", "--tol", "{tol}"]
    commands = [f"./solver {n} --tol {tol}".split() for n, tol in ((64, 1), (128, 2))]
    assert differing_words(commands, template) == ["n=64 tol=1", "n=128 tol=2"]
