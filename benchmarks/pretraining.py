"""The peer's side of a pre-training step: ``BertForPreTraining`` with our weights, fed our batches with padding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import measure
import torch
from torch import Tensor, nn

from firth.convert import hf_bert
from firth.convert.renames import expand, to_theirs
from firth.data.batch import Batch, Objective
from firth.packed import to_padded
from firth.training.trainer import Trainer

# What may differ before the first step, dropout off: losses, and norms of the whole gradient relative to themselves.
# Losses alone would show little: those of fresh weights are near ln V whatever is computed.
TOLERANCES = {torch.float32: (1e-4, 1e-3), torch.bfloat16: (1e-2, 3e-2)}


def peer(objective: Objective) -> nn.Module:
    """The model of transformers with the sizes and weights of ours."""
    import transformers

    config = objective.encoder.config
    sizes = hf_bert.config_to_hf(config, "BertForPreTraining", 0)
    unused = ("model_type", "architectures", "dtype", "is_decoder")
    model = transformers.BertForPreTraining(
        transformers.BertConfig(**{key: value for key, value in sizes.items() if key not in unused})
    )
    state = to_theirs(objective.state_dict(), expand(hf_bert.NAMES, config.n_layers))
    missing, unknown = model.load_state_dict(state, strict=False)
    # Their output matrix is their embedding, and the bias has two names.
    assert not unknown and all(name.startswith("cls.predictions.decoder.") for name in missing), (missing, unknown)
    return model


def padded(batch: Batch) -> dict[str, Tensor]:
    """The batch as they read it: rectangles, a mask, and -100 wherever nothing is asked."""
    tokens, asked = batch.tokens, batch.targets["mlm"]
    ids, real = to_padded(tokens.ids, tokens.rows)
    labels = torch.full((tokens.rows.n_tokens,), -100)
    labels[asked.index] = asked.label
    given = {
        "input_ids": ids,
        "attention_mask": real.long(),
        "labels": to_padded(labels, tokens.rows, fill=-100.0)[0],
    }
    if tokens.segments is not None:
        given["token_type_ids"] = to_padded(tokens.segments, tokens.rows)[0]
    return given | {"next_sentence_label": batch.targets["nsp"].label}


@dataclass
class PeerStep:
    """Their updates, in the type that matrix products compute in (autocast, unless it is float32)."""

    model: nn.Module
    dtype: torch.dtype
    device: str = "cpu"
    compiled: bool = False

    def __post_init__(self) -> None:
        self.model.to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        self.forward: Callable[..., Any] = torch.compile(self.model) if self.compiled else self.model

    def loss(self, given: dict[str, Tensor]) -> Tensor:
        with torch.autocast(self.device.partition(":")[0], self.dtype, enabled=self.dtype != torch.float32):
            loss: Tensor = self.forward(**given).loss
            return loss

    def train(self, every: Sequence[dict[str, Tensor]]) -> None:
        """One update from each batch."""
        self.model.train()
        for given in every:
            self.optimizer.zero_grad(set_to_none=True)
            self.loss(on(self.device, given)).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()

    def first(self, given: dict[str, Tensor]) -> tuple[float, float]:
        """Loss and gradient norm without dropout."""
        self.model.eval()
        loss = self.loss(on(self.device, given))
        loss.backward()
        return float(loss.detach()), gradient_norm(self.model)


def on(device: str, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors there."""
    return {name: value.to(device) for name, value in given.items()}


def first(trainer: Trainer, batch: Batch) -> tuple[float, float]:
    """The same of ours, in the type that the trainer computes in."""
    trainer.objective.eval()
    losses, counts = trainer.forward(batch.to(trainer.device), None).losses, batch.counts()
    loss = torch.stack([losses[term] / counts[term] for term in losses]).sum()
    loss.backward()
    trainer.objective.train()
    return float(loss.detach()), gradient_norm(trainer.objective)


def gradient_norm(model: nn.Module) -> float:
    """Of all parameters together; takes the gradients away."""
    norm = float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
    model.zero_grad(set_to_none=True)
    return norm


def checked(
    name: str, dtype: torch.dtype, found: tuple[float, float], expected: tuple[float, float]
) -> list[dict[str, Any]]:
    """That a contestant's loss and gradient are those of float32, as facts to record."""
    for_loss, for_norm = TOLERANCES[dtype]
    return [
        measure.check(f"{name}, loss", abs(found[0] - expected[0]), for_loss),
        measure.check(f"{name}, gradient", abs(found[1] / expected[1] - 1), for_norm),
    ]
