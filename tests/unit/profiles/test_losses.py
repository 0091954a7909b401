"""The sentences about what profiles lack."""

from __future__ import annotations

import pytest

from hpcprof.profiles.losses import Loss, LossKind, Subject, losses, over_ranks, short_sentences

DISCARDED = "150 annotations were discarded, e.g. at 3.5 ms. Were the fields initialized?"


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (
            Loss(LossKind.ROW, Subject.KERNEL, 57, 172, "end"),
            "57 of 172 kernels have no valid end and are left out",
        ),
        (
            Loss(LossKind.ROW, Subject.CALL, 1, 1896, "start"),
            "1 of 1,896 API calls has no valid start and is left out",
        ),
        (Loss(LossKind.ROW, Subject.EVENT, 2, None, "form"), "2 events have no valid form and are left out"),
        (Loss(LossKind.FIELD, Subject.COPY, 3, 4, "bytes"), "3 of 4 memory copies have no readable bytes"),
        (Loss(LossKind.LAUNCH, Subject.MEMORY, 1, 1), "1 of 1 memory operation has no recorded launch call"),
        (
            Loss(LossKind.GRAPH, Subject.GRAPH, 1),
            "1 launch of CUDA graphs was traced as a whole: it counts as compute, and its kernels are not in "
            "the profile (nsys --cuda-graph-trace=node records them)",
        ),
        (
            Loss(LossKind.STEP, Subject.CAPTURE, detail="began"),
            "the capture began inside a step, which is left out",
        ),
        (
            Loss(LossKind.DIAGNOSTIC, Subject.CAPTURE, detail=DISCARDED),
            "the profiler reports: 150 annotations were discarded, e.g. at 3.5 ms",
        ),
    ],
)
def test_a_loss_is_one_sentence_with_its_counts(loss: Loss, sentence: str) -> None:
    assert loss.sentence == sentence


@pytest.mark.parametrize("kind", LossKind)
def test_every_kind_has_a_sentence(kind: LossKind) -> None:
    sentence = Loss(kind, Subject.KERNEL, 2, 3, "x").sentence
    assert sentence and "\n" not in sentence and not sentence.endswith(".")


def test_a_long_message_of_the_profiler_is_shortened() -> None:
    sentence = Loss(LossKind.DIAGNOSTIC, Subject.CAPTURE, detail="word " * 99).sentence
    assert len(sentence) < 200 and sentence.endswith("[...]")


def test_a_count_of_nothing_is_no_loss() -> None:
    assert losses(LossKind.ROW, Subject.KERNEL, {"start": 0, "end": 2}, 5) == [
        Loss(LossKind.ROW, Subject.KERNEL, 2, 5, "end")
    ]


def test_the_same_loss_of_several_ranks_is_one_sentence_with_the_sums() -> None:
    ends = [(rank, Loss(LossKind.ROW, Subject.KERNEL, rank, 100, "end")) for rank in (3, 1)]
    calls = (1, Loss(LossKind.LAUNCH, Subject.KERNEL, 7, 99))
    assert over_ranks([*ends, calls]) == [
        "ranks 1, 3: 4 of 200 kernels have no valid end and are left out",
        "rank 1: 7 of 99 kernels have no recorded launch call",
    ]
    unknown = (2, Loss(LossKind.ROW, Subject.KERNEL, 1, None, "end"))
    assert over_ranks([*ends, unknown]) == ["ranks 1, 2, 3: 5 kernels have no valid end and are left out"]


def test_in_short_the_losses_of_the_same_ranks_are_one_sentence() -> None:
    found = [
        (rank, Loss(LossKind.DIAGNOSTIC, Subject.CAPTURE, detail=detail))
        for detail, ranks in (("No CUDA.", (0, 1)), ("No NVTX.", (0, 1)), ("Late.", (1,)))
        for rank in ranks
    ]
    assert short_sentences(found) == [
        "ranks 0, 1: the profiler reports: No CUDA; the profiler reports: No NVTX",
        "rank 1: the profiler reports: Late",
    ]


def test_the_sentence_of_a_warning_that_tells_of_the_loss_is_shown() -> None:
    told = "CUPTI buffers: 49 of 50. Some CUPTI events might be missing. Try."
    loss = Loss(LossKind.DIAGNOSTIC, Subject.CAPTURE, 1, None, told)
    assert loss.sentence == "the profiler reports: Some CUPTI events might be missing"


def test_a_profile_that_names_no_process_needs_another_writer() -> None:
    whole = Loss(LossKind.PROCESS, Subject.EVENT, 480, 480)
    assert "which process each thread belongs to" in whole.remedy
    assert Loss(LossKind.PROCESS, Subject.EVENT, 480, 500).remedy == ""
