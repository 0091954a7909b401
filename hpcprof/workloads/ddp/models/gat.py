"""Two layers of graph attention (Veličković et al. 2018) that learn retrieval on random graphs.

The sizes are those of GiGL's trainer: hidden 256, out 128, one head, dropout 0.5, 512 random negatives,
temperature 0.01, embeddings of length 1, Adam with learning rate 0.005 and weight decay 0.0005.
``--batch-size`` is the number of queries, each with one node to retrieve; every node has ten neighbours.
"""

from typing import Any

import torch
from torch import nn

from hpcprof.workloads.ddp.options import TrainingParameters

_FEATURES, _HIDDEN_SIZE, _OUTPUT_SIZE = 128, 256, 128
_HEADS = 1
_NEGATIVES = 512
_NEIGHBOURS = 10
_DROPOUT = 0.5
_TEMPERATURE = 0.01


class GraphAttention(nn.Module):
    """An attention layer: weighted means of each node's neighbours, ``outputs`` columns per head."""

    def __init__(self, inputs: int, outputs: int, heads: int = _HEADS) -> None:
        super().__init__()
        self.heads, self.outputs = heads, outputs
        self.project = nn.Linear(inputs, heads * outputs, bias=False)
        self.from_source = nn.Parameter(torch.empty(heads, outputs))
        self.from_target = nn.Parameter(torch.empty(heads, outputs))
        self.bias = nn.Parameter(torch.zeros(heads * outputs))
        for weight in (self.project.weight, self.from_source, self.from_target):
            nn.init.xavier_uniform_(weight)

    def forward(self, nodes: Any, edges: Any) -> Any:
        """Return [n, heads * outputs] for ``nodes`` [n, inputs] and ``edges`` [2, e], sources and targets."""
        source, target = edges
        projected = self.project(nodes).view(-1, self.heads, self.outputs)
        sent = (projected * self.from_source).sum(-1)[source]
        received = (projected * self.from_target).sum(-1)[target]
        score = nn.functional.leaky_relu(sent + received, 0.2)
        # A softmax over the incoming edges of each node; subtract the maximum to avoid overflow.
        largest = score.new_full((len(nodes), self.heads), -torch.inf)
        column = target.unsqueeze(1).expand_as(score)
        largest = largest.scatter_reduce(0, column, score.detach(), "amax")
        weight = (score - largest[target]).exp()
        total = weight.new_zeros(len(nodes), self.heads).index_add(0, target, weight)
        message = projected[source] * (weight / total[target]).unsqueeze(-1)
        return message.new_zeros(projected.shape).index_add(0, target, message).flatten(1) + self.bias


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GraphAttention(_FEATURES, _HIDDEN_SIZE)
        self.second = GraphAttention(_HIDDEN_SIZE * _HEADS, _OUTPUT_SIZE)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, nodes: Any, edges: Any) -> Any:
        hidden = nn.functional.elu(self.first(self.dropout(nodes), edges))
        return nn.functional.normalize(self.second(self.dropout(hidden), edges), dim=1)


def build() -> Any:
    """Return the model."""
    return _Encoder()


def batch(parameters: TrainingParameters, device: Any) -> Any:
    """Return a graph whose nodes are queries, then their answers, then random negatives."""
    queries = parameters.batch_size
    count = 2 * queries + _NEGATIVES
    target = torch.arange(count).repeat_interleave(_NEIGHBOURS)
    source = torch.randint(0, count, target.shape)
    itself = torch.arange(count)
    edges = torch.stack((torch.cat((source, itself)), torch.cat((target, itself))))
    nodes = torch.randn(count, _FEATURES)
    # Answers resemble their queries, so that the model can learn something.
    nodes[queries : 2 * queries] = nodes[:queries] + 0.5 * torch.randn(queries, _FEATURES)
    return [{"samples": nodes.to(device), "edges": edges.to(device), "queries": queries}]


def loss(model: Any, inputs: Any) -> Any:
    """Return the retrieval loss: the cross entropy of the answer of each query among all other nodes."""
    queries = inputs["queries"]
    embeddings = model(inputs["samples"], inputs["edges"])
    scores = embeddings[:queries] @ embeddings[queries:].T / _TEMPERATURE
    return nn.functional.cross_entropy(scores, torch.arange(queries, device=scores.device))


def optimizer(parameters: Any) -> Any:
    """Return the optimizer of the trainer."""
    return torch.optim.Adam(parameters, lr=0.005, weight_decay=0.0005)
