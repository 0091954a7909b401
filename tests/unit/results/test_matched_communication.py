"""The communication that ranks have in common."""

from __future__ import annotations

from collections import defaultdict

import pytest

from hpcprof.analysis.collectives.matching import match_collectives
from hpcprof.analysis.collectives.pair_matching import match_pairs
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.results.analysis_table import data_frame
from hpcprof.results.matched_communication import MatchedCommunication, RankCommunication
from hpcprof.results.over_ranks import update_run
from hpcprof.results.store.store import Store
from tests.data.parallel_program import Program
from tests.data.stored_program import RUN, store_program

RANKS = 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A program with pipelines of four ranks, whose profiles have partners within communicators."""
    store, _ = store_program(tmp_path_factory.mktemp("matched"), Program(RANKS, 300, pipeline=4))
    update_run(RUN, store)
    return store


@pytest.fixture(scope="module")
def found(store: Store) -> dict[int, RankCommunication]:
    matched = MatchedCommunication(RUN, store)
    return {rank: matched.of_rank(rank) for rank in range(RANKS)}


def ends(found: dict[int, RankCommunication], *ways: int) -> dict[int, list[tuple[int, int, int]]]:
    """Return rank, start and way of each end of what has these ways, by number."""
    by_number = defaultdict(list)
    for rank, own in found.items():
        for start, number, way in zip(own.start, own.number, own.way, strict=True):
            if way in ways:
                by_number[int(number)].append((rank, int(start), int(way)))
    return by_number


def test_a_message_has_one_number_where_it_is_sent_and_where_it_is_received(
    store: Store, found: dict[int, RankCommunication]
) -> None:
    analysis = ANALYSES["rank_collectives"]
    rows = data_frame(analysis.columns, store.read(RUN, analysis.name).columns)
    expected = {
        ((pair.sender, int(sent), 1), (pair.receiver, int(received), -1))
        for pair in match_pairs(rows)[0]
        for sent, received in pair.start
    }
    messages = ends(found, 1, -1).values()
    assert {tuple(sorted(one, key=lambda end: -end[2])) for one in messages} == expected
    assert len(messages) == len(expected) > 0


def test_a_collective_has_one_number_on_all_of_its_ranks(
    store: Store, found: dict[int, RankCommunication]
) -> None:
    analysis = ANALYSES["rank_collectives"]
    rows = data_frame(analysis.columns, store.read(RUN, analysis.name).columns)
    expected = {
        tuple((int(rank), int(start), 0) for rank, start in zip(one.ranks, starts, strict=True))
        for one in match_collectives(rows)[0]
        for starts in one.start
    }
    assert {tuple(sorted(one)) for one in ends(found, 0).values()} == expected != set()


def test_the_text_names_the_partner_and_the_size(found: dict[int, RankCommunication]) -> None:
    sent = [text for text, way in zip(found[0].texts, found[0].way, strict=True) if way == 1]
    assert sent[0].startswith("Send 0 to rank ") and sent[0].endswith("MB")
