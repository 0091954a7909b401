"""Turns of readers: who comes next."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from hpcprof.serve.tiles import AskAgain
from hpcprof.serve.turns import Turns


def order_of(asked: Sequence[str], places: int) -> list[str]:
    """Return the order in which requests of readers, one after the other, have their turns."""
    turns, served, all_asked = Turns(places, 20), list[str](), anyio.Event()

    async def ask(reader: str) -> None:
        async with turns.turn(reader):
            served.append(reader)
            await all_asked.wait()

    async def ask_all() -> None:
        async with anyio.create_task_group() as group:
            for reader in asked:
                group.start_soon(ask, reader)
                await anyio.sleep(0)
            all_asked.set()

    anyio.run(ask_all)
    return served


def test_a_reader_waits_for_one_query_of_another_at_most() -> None:
    assert order_of("aaaaaaaaaaaab", 1)[:3] == ["a", "b", "a"]
    assert order_of("aaaaaaaaaaaab", 2)[:2] == ["a", "b"]


def test_readers_take_turns() -> None:
    assert "".join(order_of("aaabbbccc", 1)) == "abcabcabc"


def test_a_reader_who_gives_up_leaves_its_place_to_others() -> None:
    turns = Turns(1, 1)

    async def scenario() -> None:
        async with turns.turn("a"):
            with anyio.move_on_after(0.01):
                async with turns.turn("b"):
                    raise AssertionError
            async with anyio.create_task_group() as group:
                group.start_soon(_take, turns, "b")
                await anyio.sleep(0.01)
                with pytest.raises(AskAgain, match="1 of yours wait"):
                    await _take(turns, "b")
                group.cancel_scope.cancel()
        await _take(turns, "b")
        assert not turns._served and not turns._waiting

    anyio.run(scenario)


async def _take(turns: Turns, reader: str) -> None:
    async with turns.turn(reader):
        pass
