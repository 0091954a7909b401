"""The changes of a what-if, as users write them."""

from __future__ import annotations

import pytest

from hpcprof.analysis.explain.changes import FORMS, Change, parse_changes
from hpcprof.common.errors import UsageError


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("range:data*0", Change("range", "data", 0.0)),
        ("range:data*0.5@1", Change("range", "data", 0.5, rank=1)),
        ("range:a*b:c*2", Change("range", "a*b:c", 2.0)),
        ("range:data+40ms", Change("range", "data", 1.0, add_ns=40_000_000)),
        ("range:data+1.5µs@3", Change("range", "data", 1.0, add_ns=1_500, rank=3)),
        ("range:a+b*0", Change("range", "a+b", 0.0)),
        ("gpu:forward*0.5", Change("gpu", "forward", 0.5)),
        ("gpu:forward+12ms@1", Change("gpu", "forward", 1.0, add_ns=12_000_000, rank=1)),
        ("kernel:gemm.*bf16*0.5", Change("kernel", "gemm.*bf16", 0.5)),
        ("kernel:^nccl*0", Change("kernel", "^nccl", 0.0)),
        ("api:cudaMalloc*0@0", Change("api", "cudaMalloc", 0.0, rank=0)),
        ("comm*0", Change("comm", "", 0.0)),
        ("copy*1e-1", Change("copy", "", 0.1)),
        ("rank:12=median", Change("rank", "", 1.0, rank=12, median=True)),
        ("bandwidth*2", Change("bandwidth", "", 2.0)),
    ],
)
def test_a_change_is_parsed(text: str, change: Change) -> None:
    assert parse_changes([text]) == [change]


def test_every_form_that_is_documented_is_parsed() -> None:
    assert len(parse_changes(list(FORMS))) == len(FORMS)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "unknown change ''"),
        ("data*0", "unknown change 'data' in 'data*0'"),
        ("ranges:data*0", "did you mean"),
        ("range:data", "write it as in range:NAME*0 or range:NAME+40ms"),
        ("range*0", "has no name"),
        ("range:data*", "'' after * must be a number of at least 0"),
        ("range:data*-1", "'-1' after *"),
        ("range:data*nan", "'nan' after *"),
        ("range:data+1.2.3ms", "'1.2.3' after +"),
        ("kernel:gemm+1ms", "does not say what changes"),
        ("kernel:(*0", "'(' is not a regular expression"),
        ("kernel:(?=gemm)*0", "is not a regular expression: invalid perl operator"),
        ("comm:nccl*0", "comm takes no name"),
        ("comm*0@1", "comm changes on all ranks"),
        ("rank:2*0", "rank:2=median"),
        ("bandwidth*0", "a number above 0"),
    ],
)
def test_what_is_no_change_is_refused_with_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_changes([text])
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
