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

# Tolerances before the first step, without dropout: of losses, and of the relative norm of the whole gradient. Losses
# alone would show little: with random initial weights they are near ln V whatever is computed.
TOLERANCES = {torch.float32: (1e-4, 1e-3), torch.bfloat16: (1e-2, 3e-2)}


def peer(objective: Objective) -> nn.Module:
    """The transformers model with our sizes and weights."""
    import transformers

    config = objective.encoder.config
    sizes = hf_bert.config_to_hf(config, "BertForPreTraining", 0)
    unused = ("model_type", "architectures", "dtype", "is_decoder")
    model = transformers.BertForPreTraining(
        transformers.BertConfig(**{key: value for key, value in sizes.items() if key not in unused})
    )
    state = to_theirs(objective.state_dict(), expand(hf_bert.NAMES, config.n_layers))
    missing, unknown = model.load_state_dict(state, strict=False)
    # Their output matrix is tied to the embedding, and the bias has two names.
    assert not unknown and all(name.startswith("cls.predictions.decoder.") for name in missing), (missing, unknown)
    return model


def padded(batch: Batch) -> dict[str, Tensor]:
    """The batch in their format: padded, with a mask, and -100 where there is no target."""
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
    """Their updates, in the dtype of the matrix products (autocast, unless it is float32)."""

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
    """The tensors on that device."""
    return {name: value.to(device) for name, value in given.items()}


def first(trainer: Trainer, batch: Batch) -> tuple[float, float]:
    """The same for ours, in the trainer's dtype."""
    trainer.objective.eval()
    losses, counts = trainer.forward(batch.to(trainer.device), None).losses, batch.counts()
    loss = torch.stack([losses[term] / counts[term] for term in losses]).sum()
    loss.backward()
    trainer.objective.train()
    return float(loss.detach()), gradient_norm(trainer.objective)


def gradient_norm(model: nn.Module) -> float:
    """The gradient norm of all parameters together; clears the gradients."""
    norm = float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
    model.zero_grad(set_to_none=True)
    return norm


def checked(
    name: str, dtype: torch.dtype, found: tuple[float, float], expected: tuple[float, float]
) -> list[dict[str, Any]]:
    """Check that a contestant's loss and gradient match float32; facts to record."""
    for_loss, for_norm = TOLERANCES[dtype]
    return [
        measure.check(f"{name}, loss", abs(found[0] - expected[0]), for_loss),
        measure.check(f"{name}, gradient", abs(found[1] / expected[1] - 1), for_norm),
    ]
