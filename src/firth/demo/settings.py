"""The demo's settings, and the names of the models it compares."""

from dataclasses import dataclass
from typing import Literal

from firth.config import option

SHIPPED_START, PRETRAINED = "shipped BERT", "BERT pre-trained here"
FRESH, TFIDF = "BERT without pre-training", "TF-IDF + logistic regression"
STARTS = (SHIPPED_START, PRETRAINED, FRESH, TFIDF)
DOCSTRINGS, REVIEWS = "docstrings", "reviews"
# The bundled model for each task's language.
SHIPPED = {DOCSTRINGS: "firth-mini-en", REVIEWS: "firth-mini-ko"}


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSettings:
    """The demo's own settings: pre-training uses the recipe ``small``, fine-tuning the usual defaults.

    Sizes, steps and samples were chosen to fit the time.
    """

    held_out_share: float = option(0.05, "share of the documents held out of pre-training")
    vocab_size: int = option(4000, "WordPiece tokens, lower-cased")
    n_layers: int = option(2, "Transformer blocks")
    width: int = option(128, "hidden size")
    n_heads: int = option(4, "attention heads")
    short_length: int = option(64, "longest sequence of most steps of pre-training")
    length: int = option(128, "longest sequence of the others, and the model's positions")
    mask_share: float = option(0.3, "share of tokens predicted: twice BERT's, to learn more from each sequence")
    steps: int = option(2000, "pre-training steps")
    batch_tokens: int = option(1024, "tokens per step: small batches learn more from few tokens")
    learning_rate: float = option(2e-3, "peak learning rate of pre-training")
    log_every: int = option(50, "steps between points of the loss curve")
    eval_every: int = option(250, "steps between evaluations on held-out text")
    save_every: int = option(250, "steps between checkpoints: what an interruption may cost")
    precision: Literal["auto", "float32", "bfloat16"] = option("auto", "as in recipes: train.precision")
    fewest_tokens: int = option(8, "shortest held-out sentence that is used")
    most_tokens: int = option(60, "longest held-out sentence that is used")
    n_masks: int = option(10, "filled masks that the report shows; the accuracy is over all")
    top_k: int = option(5, "candidates for a mask")
    n_queries: int = option(5, "sentences whose nearest ones the report shows")
    n_nearest: int = option(3, "nearest sentences of each")
    per_class: tuple[int, ...] = option((4, 16, 64), "labelled examples per class")
    draws: int = option(3, "random samples of them, each with its own initialisation and order")
    tune_steps: int = option(100, "fine-tuning steps")
    tune_texts: int = option(20, "texts per step")


@dataclass(frozen=True, slots=True)
class Score:
    """The test scores of one ``start`` on a task, fine-tuned on sample ``draw`` of ``per_class`` labels per class."""

    task: str
    start: str
    per_class: int
    draw: int
    accuracy: float
    macro_f1: float
