"""The records of the hook of JAX, with a profiler that stands for the real one."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcprof.node.hooks import jax_hook, window
from hpcprof.node.hooks.jax_hook import JaxRecorder


class Profiler:
    """Writes the steps and windows that it is told to record."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.recorded = 0
        self.initialized = True

    def ready(self) -> bool:
        return self.initialized

    def synchronize(self) -> None:
        pass

    def start(self, folder: str) -> None:
        assert self.folder is None
        self.folder = Path(folder)

    def stop(self) -> None:
        assert self.folder is not None
        self.recorded += 1
        place = self.folder / "plugins/profile/now"
        place.mkdir(parents=True)
        (place / "host.xplane.pb").write_text(f"{self.recorded}")
        (place / "host.trace.json.gz").write_text("")
        self.folder = None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that the hook prints."""
    texts: list[str] = []
    for module in (jax_hook, window):
        monkeypatch.setattr(module, "say", texts.append)
    return texts


def recorder(folder: Path, profiler: Profiler, **variables: str) -> JaxRecorder:
    environment = {"HPCPROF_PROFILE_OUTPUT": str(folder / "rank00000"), "TMPDIR": str(folder), **variables}
    return JaxRecorder(profiler, environment)


def run_steps(made: JaxRecorder, count: int, clock: list[float], seconds: float = 0.1) -> None:
    for _ in range(count):
        made.step_begins()
        clock[0] += seconds
        made.step_ends()
        made.tick()


def test_steps_of_which_jax_wrote_no_profile_are_not_said_to_be_recorded(
    tmp_path: Path, clock: list[float], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler = Profiler()
    made = recorder(tmp_path, profiler)
    run_steps(made, 6, clock)  # the first one is a window of time, which stays
    monkeypatch.setattr(profiler, "stop", lambda: None)
    run_steps(made, 30, clock)
    made.close()
    assert (tmp_path / "rank00000.xplane.pb").read_text() == "1"
    assert len(said) == 1 and said[0].endswith(
        "after it imported JAX, since JAX wrote no profile of its steps."
    )


def test_the_twenty_steps_after_the_first_five_are_recorded(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    profiler = Profiler()
    made = recorder(tmp_path, profiler)
    run_steps(made, 5, clock)
    # The first one is a window of time.
    run_steps(made, 30, clock)
    assert profiler.recorded == 2
    made.close()
    assert said == ["recorded steps 5 to 24 that the program marks, counted from 0."]
    assert [file.name for file in tmp_path.iterdir() if not file.name.startswith(".")] == [
        "rank00000.xplane.pb"
    ]
    assert (tmp_path / "rank00000.xplane.pb").read_text() == "2"


def test_a_program_that_compiles_after_its_steps_does_not_lose_them(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    made = recorder(tmp_path, Profiler(), HPCPROF_CAPTURE_UNTIL=str(time.time() + 3600))
    run_steps(made, 26, clock)
    made.compiled()  # such as what the program checks its results by
    for _ in range(100):
        clock[0] += 1
        made.tick()
    made.close()
    assert (tmp_path / "rank00000.xplane.pb").read_text() == "2"
    assert "recorded steps 5 to 24" in said[0]


def test_long_steps_are_as_many_as_ten_seconds_hold_and_chosen_ones_are_all(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    for name, chosen in (("default", {}), ("chosen", {"HPCPROF_CAPTURE_STEPS": "1-7"})):
        folder = tmp_path / name
        folder.mkdir()
        made = recorder(folder, Profiler(), **chosen)
        run_steps(made, 9, clock, seconds=6)
        made.close()
    assert said == [
        "recorded steps 5 to 6 that the program marks, counted from 0.",
        "recorded steps 1 to 7 that the program marks, counted from 0.",
    ]


def test_a_program_that_marks_nothing_is_recorded_in_windows_the_last_of_which_is_kept(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    profiler = Profiler()
    profiler.initialized = False
    made = recorder(tmp_path, profiler)
    made.tick()
    assert profiler.folder is None
    profiler.initialized = True
    for second in range(20):
        clock[0] = float(second)
        made.tick()
        assert (profiler.folder is not None) is (second in (0, 1, 2, 3, 10, 11, 12, 13))
    made.close()
    assert (tmp_path / "rank00000.xplane.pb").read_text() == "2"
    assert said == ["recorded 4 s of the program, 10 s after it imported JAX, since it marked no step."]


def test_a_window_that_had_just_begun_does_not_replace_the_one_before(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    made = recorder(tmp_path, Profiler())
    for clock[0] in (0.0, 5.0, 10.0, 10.5):
        made.tick()
    made.close()
    assert (tmp_path / "rank00000.xplane.pb").read_text() == "1"


def test_a_window_lasts_until_the_program_has_run_for_as_long_without_compiling(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    profiler = Profiler()
    made = recorder(tmp_path, profiler)
    recording = []
    for second in range(100):
        clock[0] = float(second)
        if second in (3, 5, 30):
            made.compiled()
        made.tick()
        recording.append(profiler.folder is not None)
    # The second window counts from the compilation that the first one shows; at 30 s, they begin anew.
    windows = [*range(9), *range(15, 19), *range(31, 35), *range(40, 44), *range(90, 94)]
    assert [second for second, records in enumerate(recording) if records] == windows
    assert (tmp_path / "rank00000.xplane.pb").read_text() == "5"
    assert made.waits


def test_a_program_that_compiles_for_longer_than_a_window_is_recorded_when_it_runs(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    made = recorder(tmp_path, Profiler())
    for clock[0] in (0.0, 4.0, 7.0):
        made.tick()
    made.compiled()
    for clock[0] in (7.1, 7.2, 8.0):
        made.tick()
    made.close()
    assert (tmp_path / "rank00000.xplane.pb").read_text() == "2"
    assert said == ["recorded 0.8 s of the program, 7.2 s after it imported JAX, since it marked no step."]


def test_a_window_lasts_until_what_the_program_compiles_in_it_has_run(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    made = recorder(tmp_path, Profiler())
    for second in range(20):
        clock[0] = float(second)
        if second == 2:
            made.lowered()
        if second == 8:
            made.compiled()
        made.tick()
        if second == 12:
            break
    made.close()
    assert said == ["recorded 12 s of the program, 0 s after it imported JAX, since it marked no step."]


def test_a_program_that_compiles_while_a_window_is_written_gets_another(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    profiler = Profiler()
    made = recorder(tmp_path, profiler)
    stop = profiler.stop

    def slowly() -> None:
        clock[0] += 1.0
        made.compiled()
        stop()

    made.tick()
    clock[0], profiler.stop = 4.0, slowly  # type: ignore[method-assign]
    made.tick()
    profiler.stop = stop  # type: ignore[method-assign]
    for clock[0] in (5.1, 5.2, 9.3):
        made.tick()
    assert said == [] and (tmp_path / "rank00000.xplane.pb").read_text() == "2"


def test_a_program_that_never_stops_to_compile_ends_its_windows(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    profiler = Profiler()
    made = recorder(tmp_path, profiler)
    for second in range(400):
        clock[0] = float(second)
        made.compiled()
        made.tick()
    # Windows of a minute: those before, and twice those anew.
    assert profiler.recorded <= 9
    assert profiler.folder is None
    assert not made.waits


def test_compilations_are_told_by_the_events_of_jax(tmp_path: Path, clock: list[float]) -> None:
    listeners: list[Any] = []
    listening = SimpleNamespace(register_event_duration_secs_listener=listeners.append)
    profiler = Profiler()
    made = recorder(tmp_path, profiler)
    jax_hook._watch_compiler(SimpleNamespace(monitoring=listening), made)
    made.tick()
    clock[0] = 3.0
    listeners[0]("/jax/checkpoint/write/duration_sec", 1.0)
    listeners[0]("/jax/core/compile/backend_compile_duration", 2.0, fun_name="step")
    clock[0] = 5.0
    made.tick()
    assert profiler.folder is not None
    jax_hook._watch_compiler(SimpleNamespace(), made)


def test_a_program_that_ends_among_the_chosen_steps_is_told(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    made = recorder(tmp_path, Profiler())
    run_steps(made, 8, clock)
    made.close()
    assert said == [
        "recorded steps 5 to 7 that the program marks, counted from 0; the program ended before the end of "
        "step 8."
    ]


def test_a_program_that_profiles_itself_is_left_alone(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    profiler = Profiler()
    made = recorder(tmp_path, profiler)
    made.program_profiles()
    run_steps(made, 30, clock)
    made.close()
    assert (profiler.recorded, said) == (0, ["no trace: the program runs the JAX profiler itself."])


def test_one_process_of_a_rank_records(tmp_path: Path, clock: list[float], said: list[str]) -> None:
    (tmp_path / ".hpcprof-jax").write_text("1")
    profiler = Profiler()
    made = recorder(tmp_path, profiler)
    run_steps(made, 30, clock)
    made.close()
    assert (profiler.recorded, said) == (0, [])


def test_it_stops_ahead_of_the_walltime_limit_and_notes_it(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    (tmp_path / "state").mkdir()
    until = str(time.time() - 1)
    made = recorder(tmp_path, Profiler(), HPCPROF_RUN_DIR=str(tmp_path), HPCPROF_CAPTURE_UNTIL=until)
    made.step_begins()
    for _ in range(6):
        made.step_ends()
        made.step_begins()
    made.tick()
    assert (tmp_path / "state/rank00000.stopped").read_text() == "and written\n"
    assert (tmp_path / "rank00000.xplane.pb").exists()
    assert not made.waits


def test_an_error_of_the_profiler_is_said_and_the_program_goes_on(
    tmp_path: Path, clock: list[float], said: list[str]
) -> None:
    profiler: Any = Profiler()
    profiler.start = lambda folder: 1 / 0
    made = recorder(tmp_path, profiler)
    run_steps(made, 30, clock)
    made.close()
    (sentence,) = said
    assert "the JAX profiler stopped: ZeroDivisionError" in sentence
    assert "the program goes on" in sentence


def test_steps_of_the_program_are_counted_through_its_own_marks(tmp_path: Path) -> None:
    told: list[str] = []

    class Step:
        def __enter__(self) -> Step:
            told.append("enter")
            return self

        def __exit__(self, *error: object) -> None:
            told.append("exit")

    jax = SimpleNamespace(profiler=SimpleNamespace(StepTraceAnnotation=Step))
    counting: Any = SimpleNamespace(
        step_begins=lambda: told.append("begin"), step_ends=lambda: told.append("end")
    )
    jax_hook._watch_steps(jax, counting)
    with Step():
        pass
    assert told == ["begin", "enter", "exit", "end"]
