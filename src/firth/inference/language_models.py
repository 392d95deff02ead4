"""What every language model is asked in the same words: the next token's probabilities, in one direction or in both."""

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
    forward model predicts a token from those before it, a backward one from those after it, ELMo's does each.
    """

    objective: NextToken
    first: tuple[int, ...]
    last: tuple[int, ...]
    directions: tuple[Direction, ...]

    @property
    def backward(self) -> bool:
        """Whether it writes from the end of a text to its beginning."""
        return self.directions == ("backward",)

    @property
    def start(self) -> tuple[int, ...]:
        """What is read before a text, in the order of reading."""
        return self.last if self.backward else self.first

    def states(self, hidden: Hidden) -> Mapping[Direction, Float[Tensor, "T H"]]:
        """The states that predict, by direction: forward the next token, backward the one before."""
        if isinstance(self.objective, BilmLM):
            forward, backward = hidden.top.chunk(2, 1)
            return {"forward": forward, "backward": backward}
        return {self.directions[0]: hidden.top}


def language_model(loaded: Loaded) -> LanguageModel:
    """The model as one that predicts the next token; ConfigError says what to do where it has not learned to."""
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
        # In its stream a document follows what ends the one before.
        return LanguageModel(objective, layout.last, (), ("forward",))
    if isinstance(objective, AwdLM):
        assert isinstance(objective.encoder, AwdLstm)
        if objective.encoder.config.backward:
            # Read from its end, a document follows what begins the next.
            return LanguageModel(objective, (), layout.first, ("backward",))
        return LanguageModel(objective, layout.first, (), ("forward",))
    if isinstance(objective, BilmLM):
        return LanguageModel(objective, layout.first, layout.last, ("forward", "backward"))
    return LanguageModel(objective, layout.first, layout.last, ("forward",))
