"""Models of transformers with random weights, which model files may call as ``transformer.gpt2()``."""

import importlib
from typing import Any

import torch

from hpcprof.common.errors import UsageError
from hpcprof.workloads.ddp.options import TrainingParameters


def library() -> Any:
    """Return the module ``transformers``."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise UsageError(
            f"the models gpt2 and bert need transformers ({error}): pip install 'hpcprof[transformers]'."
        ) from None


def gpt2() -> Any:
    """Return GPT-2 (12 layers, 124 million parameters) without a head."""
    return library().GPT2Model(library().GPT2Config())


def bert() -> Any:
    """Return BERT-base (12 layers, 110 million parameters) without a head."""
    return library().BertModel(library().BertConfig())


def tokens(parameters: TrainingParameters, device: Any, vocabulary: int) -> Any:
    """Return random tokens of shape [batch, sequence]."""
    shape = (parameters.batch_size, parameters.sequence_length)
    return torch.randint(0, vocabulary, shape).to(device)
