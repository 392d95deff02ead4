"""A common interface to all language models that predict the next token, in one direction or in both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from firth.errors import ConfigError
from firth.folder import PRETRAINING, Loaded
from firth.models.awd_lstm import AwdLstm
from firth.objectives.awd_lm import AwdLM
from firth.objectives.bilm import BilmLM
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_token import CausalLM, StreamingLM, TiedLM
from firth.packed import Hidden

Direction = Literal["forward", "backward"]
NextToken = CausalLM | TiedLM | StreamingLM | AwdLM | BilmLM


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A model that predicts a token from those on one side of it.

    ``first`` and ``last``: special tokens around a text, which are context and are not scored. ``directions``: a
    forward model predicts a token from those before it, a backward one from those after it; ELMo's does both.
    """

    objective: NextToken
    first: tuple[int, ...]
    last: tuple[int, ...]
    directions: tuple[Direction, ...]

    @property
    def backward(self) -> bool:
        """Whether it reads and generates from the end of a text to its beginning."""
        return self.directions == ("backward",)

    @property
    def start(self) -> tuple[int, ...]:
        """The tokens read before a text, in reading order."""
        return self.last if self.backward else self.first

    def states(self, hidden: Hidden) -> Mapping[Direction, Float[Tensor, "T H"]]:
        """The states that predict, by direction: the next token (forward) or the previous one (backward)."""
        if isinstance(self.objective, BilmLM):
            forward, backward = hidden.top.chunk(2, 1)
            return {"forward": forward, "backward": backward}
        return {self.directions[0]: hidden.top}


def language_model(loaded: Loaded) -> LanguageModel:
    """Return a model as a language model; ConfigError, saying what to do, if it does not predict the next token."""
    objective = loaded.objective
    headless = {"lm", "softmax"} & set(loaded.untrained)
    if loaded.task != PRETRAINING or not isinstance(objective, NextToken) or headless:
        why = ", which was published without a language-model head," if headless else ""
        masked = " (a masked language model fills masks: firth fill-mask)" if isinstance(objective, MaskedLM) else ""
        raise ConfigError(
            f"a model of system {loaded.system_name} for {loaded.task}{why} does not predict the next token{masked}: "
            "firth pretrain --model gpt-mini trains one that does; so do bert-ltr-mini, lstm-small, awd-lstm-small and "
            "elmo-mini"
        )
    layout = loaded.layout
    if isinstance(objective, StreamingLM):
        # In the training stream a document follows the token that ends the previous one.
        return LanguageModel(objective, layout.last, (), ("forward",))
    if isinstance(objective, AwdLM):
        assert isinstance(objective.encoder, AwdLstm)
        if objective.encoder.config.backward:
            # Read backwards, a document follows the token that starts the next one.
            return LanguageModel(objective, (), layout.first, ("backward",))
        return LanguageModel(objective, layout.first, (), ("forward",))
    if isinstance(objective, BilmLM):
        return LanguageModel(objective, layout.first, layout.last, ("forward", "backward"))
    return LanguageModel(objective, layout.first, layout.last, ("forward",))
