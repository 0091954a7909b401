"""The built-in models match their papers, and compute what plain reference code computes."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from hpcprof.common.errors import UsageError
from hpcprof.workloads.ddp.models import bert, gat, gpt2, resnet50
from hpcprof.workloads.ddp.options import MODELS, TrainingParameters
from hpcprof.workloads.ddp.training import work_per_step


def count(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_models_have_the_published_numbers_of_parameters() -> None:
    pytest.importorskip("transformers")
    with torch.device("meta"):
        # torchvision's resnet50; Hugging Face's gpt2; BERT-base with its language-modelling head.
        assert count(resnet50.build()) == 25_557_032
        assert count(gpt2.build()) == 124_439_808
        assert count(bert.build()) == 109_514_298


def test_resnet_halves_the_picture_five_times() -> None:
    with torch.device("meta"):
        model = resnet50.build()
        assert model[:-3](torch.empty(2, 3, 224, 224)).shape == (2, 2048, 7, 7)
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)


def test_graph_attention_agrees_with_a_dense_softmax() -> None:
    torch.manual_seed(1)
    layer = gat.GraphAttention(5, 3, heads=2).double()
    nodes = torch.randn(7, 5, dtype=torch.float64)
    edges = torch.stack((torch.randint(0, 7, (20,)), torch.randint(0, 7, (20,))))
    edges = torch.cat((edges, torch.arange(7).expand(2, 7)), dim=1)
    found = layer(nodes, edges)
    projected = layer.project(nodes).view(7, 2, 3)
    for node in range(7):
        sources = edges[0][edges[1] == node]
        for head in range(2):
            received = layer.from_target[head] @ projected[node, head]
            sums = torch.stack([layer.from_source[head] @ projected[s, head] + received for s in sources])
            scores = torch.nn.functional.leaky_relu(sums, 0.2)
            expected = torch.softmax(scores, 0) @ projected[sources, head]
            assert torch.allclose(found[node, 3 * head : 3 * head + 3], expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["gat", "mlp"])
def test_a_small_model_learns(name: str, precision: str) -> None:
    source = importlib.import_module(f"hpcprof.workloads.ddp.models.{name}")
    torch.manual_seed(0)
    model = source.build()
    (inputs,) = source.batch(TrainingParameters(batch_size=32), "cpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    losses = []
    for _ in range(20):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = source.loss(model, inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_counted_where_there_are_some_and_samples_elsewhere(name: str) -> None:
    source = importlib.import_module(f"hpcprof.workloads.ddp.models.{name}")
    (inputs,) = source.batch(TrainingParameters(batch_size=2, sequence_length=8), "cpu")
    expected = (16, "tokens") if name in ("gpt2", "bert") else (2, "samples")
    assert work_per_step(inputs, 2) == expected


def test_masked_tokens_alone_have_labels() -> None:
    (inputs,) = bert.batch(TrainingParameters(batch_size=4, sequence_length=64), "cpu")
    hidden = inputs["labels"] != -100
    assert (inputs["tokens"][hidden] == 103).all()
    assert 0.02 < hidden.float().mean() < 0.4


def test_without_the_library_the_models_that_need_it_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("hpcprof.workloads.ddp.models.transformer.importlib.import_module", absent)
    with pytest.raises(UsageError, match=r"No module named 'transformers'\): pip install 'hpcprof\["):
        gpt2.build()
