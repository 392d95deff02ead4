"""Properties that every system of the table must have. Float32 to 1e-5 unless a test says otherwise."""

import dataclasses
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from systems_under_test import TINY, some_batches, tiny_parts, tiny_recipe
from torch import Tensor

from firth.config import to_toml
from firth.data.batch import Batch, Target
from firth.folder import PRETRAINING, read_model, write_model
from firth.packed import Hidden, Rows, Tokens
from firth.pretraining.recipe import read_recipe
from firth.systems import SYSTEMS

every_system = pytest.mark.parametrize("system", sorted(SYSTEMS))


def test_every_row_of_the_table_is_tested() -> None:
    assert set(TINY) == set(SYSTEMS)


def rows_of(tokens: Tokens, chosen: list[int]) -> Tokens:
    """Some rows of a batch, in the order given, as a batch of their own."""
    bounds = tokens.rows.offsets.tolist()
    index = torch.cat([torch.arange(bounds[row], bounds[row + 1]) for row in chosen])
    segments = None if tokens.segments is None else tokens.segments[index]
    chars = None if tokens.chars is None else tokens.chars[index]
    rows = Rows.from_lengths([bounds[r + 1] - bounds[r] for r in chosen])
    return Tokens(rows, tokens.ids[index], segments, chars=chars)


def split_rows(batch: Batch, n_first: int) -> tuple[Batch, Batch]:
    """Split a batch in two: its first rows and the others; the targets stay with their rows."""
    # Translation targets count the tokens of the target side.
    counted = batch.tokens.rows if batch.second is None else batch.second.rows
    border = int(counted.offsets[n_first])
    n_rows = batch.tokens.rows.n_rows
    halves = []
    for rows, low, high, row_low in (
        (range(n_first), 0, border, 0),
        (range(n_first, n_rows), border, counted.n_tokens, n_first),
    ):
        targets = {}
        for term, target in batch.targets.items():
            of_rows = term == "nsp"
            begin, end = (row_low, row_low + len(rows)) if of_rows else (low, high)
            mine = (target.index >= begin) & (target.index < end)
            targets[term] = Target(target.index[mine] - begin, target.label[mine])
        tokens = rows_of(batch.tokens, list(rows))
        second = None if batch.second is None else rows_of(batch.second, list(rows))
        halves.append(dataclasses.replace(batch, tokens=tokens, targets=targets, second=second))
    return halves[0], halves[1]


@every_system
def test_a_row_alone_equals_the_row_in_a_batch(system: str, tiny_corpus: Path) -> None:
    _, objective, loader = tiny_parts(system, tiny_corpus)
    encoder = objective.eval().encoder
    (batch,) = some_batches(loader, 1)
    layers = tuple(range(len(encoder.widths)))
    together = encoder(batch.tokens, keep=layers)
    bounds = batch.tokens.rows.offsets.tolist()
    for row in range(batch.tokens.rows.n_rows):
        alone = encoder(rows_of(batch.tokens, [row]), keep=layers)
        for layer in layers:
            expected = together.layers[layer][bounds[row] : bounds[row + 1]]
            torch.testing.assert_close(alone.layers[layer], expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(alone.summary[0], together.summary[row], atol=1e-5, rtol=0)


@every_system
def test_the_order_of_rows_does_not_matter(system: str, tiny_corpus: Path) -> None:
    _, objective, loader = tiny_parts(system, tiny_corpus)
    encoder = objective.eval().encoder
    (batch,) = some_batches(loader, 1)
    n_rows = batch.tokens.rows.n_rows
    order = list(reversed(range(n_rows)))
    forward, backward = encoder(batch.tokens), encoder(rows_of(batch.tokens, order))
    torch.testing.assert_close(backward.summary[order], forward.summary, atol=1e-5, rtol=0)


@every_system
def test_targets_never_leak(system: str, tiny_corpus: Path) -> None:
    """Changing the targets changes the loss but no hidden state; a causal system never sees later tokens."""
    _, objective, loader = tiny_parts(system, tiny_corpus)
    objective.eval()
    (batch,) = some_batches(loader, 1)
    term = next(iter(objective.weights))
    target = batch.targets[term]
    other = (target.label + 7) % objective.encoder.config.vocab_size
    changed = dataclasses.replace(batch, targets={**batch.targets, term: Target(target.index, other)})
    assert not torch.equal(objective(batch).losses[term], objective(changed).losses[term])
    assert torch.equal(objective.encoder(batch.tokens).top, objective.encoder(changed.tokens).top)
    if SYSTEMS[system].predict == "next":
        _check_no_future(objective.encoder, batch.tokens, objective.encoder.config.vocab_size)
    elif SYSTEMS[system].predict == "both":
        _check_no_other_side(objective.encoder, batch.tokens)
    elif SYSTEMS[system].predict == "translation":

        def write(tokens: Tokens) -> Hidden:
            return Hidden({0: objective.written(batch.tokens, tokens)}, tokens.rows)

        _check_no_future(write, batch.second, objective.encoder.config.vocab_size)
    else:
        seen = batch.tokens.ids[target.index]
        mask_id = loader.corpus.tokenizer.mask_id
        assert (seen == mask_id).float().mean() > 0.5, "most answers are hidden from the model"


def _check_no_future(encoder: Callable[[Tokens], Hidden], tokens: Tokens, vocab_size: int) -> None:
    bounds = tokens.rows.offsets.tolist()
    middle = (bounds[0] + bounds[1]) // 2
    ids = tokens.ids.clone()
    ids[middle : bounds[1]] = (ids[middle : bounds[1]] + 1) % vocab_size
    before = encoder(tokens).top
    after = encoder(dataclasses.replace(tokens, ids=ids)).top
    torch.testing.assert_close(after[:middle], before[:middle], atol=1e-6, rtol=0)
    assert not torch.allclose(after[middle], before[middle])


def _check_no_other_side(encoder: Callable[[Tokens], Hidden], tokens: Tokens) -> None:
    """Each half of a vector depends on the words of one side alone."""
    bounds = tokens.rows.offsets.tolist()
    middle = (bounds[0] + bounds[1]) // 2
    chars = tokens.chars.clone()
    chars[middle, 1] = (chars[middle, 1] + 1) % 256
    before = encoder(tokens).top.chunk(2, 1)
    after = encoder(dataclasses.replace(tokens, chars=chars)).top.chunk(2, 1)
    for (old, new), unaware in zip(
        zip(before, after, strict=True), (slice(0, middle), slice(middle + 1, None)), strict=True
    ):
        torch.testing.assert_close(new[unaware], old[unaware], atol=1e-6, rtol=0)
        assert not torch.allclose(new[middle], old[middle])


@every_system
def test_save_and_load_are_bit_equal(system: str, tiny_corpus: Path, tmp_path: Path) -> None:
    _, objective, loader = tiny_parts(system, tiny_corpus)
    write_model(tmp_path, system, PRETRAINING, objective, loader.corpus.tokenizer, {})
    loaded = read_model(tmp_path)
    assert loaded.system_name == system
    assert loaded.objective.encoder.config == objective.encoder.config
    assert loaded.tokenizer.fingerprint == loader.corpus.tokenizer.fingerprint
    state = loaded.objective.state_dict()
    assert set(state) == set(objective.state_dict())
    for name, tensor in objective.state_dict().items():
        assert torch.equal(tensor, state[name]), name


@every_system
def test_layer_groups_partition_the_parameters(system: str, tiny_corpus: Path) -> None:
    _, objective, _ = tiny_parts(system, tiny_corpus)
    grouped = [id(p) for group in objective.encoder.layer_groups() for p in group]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(p) for p in objective.encoder.parameters()}


@every_system
def test_every_trainable_parameter_gets_gradient(system: str, tiny_corpus: Path) -> None:
    _, objective, loader = tiny_parts(system, tiny_corpus)
    carry = None
    # Two batches: a carried state reaches recurrent weights only in the second.
    for batch in some_batches(loader, 3)[::2]:
        step = objective(batch, carry)
        sum(step.losses.values()).backward()
        carry = None if step.carry is None else {name: value.detach() for name, value in step.carry.items()}
    # Only next-sentence prediction trains BERT's pooler.
    exceptions = ("encoder.pooler.",) if system == "bert-ltr" else ()
    for name, parameter in objective.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
        assert reached != name.startswith(exceptions) if exceptions else reached, name


@pytest.mark.parametrize(
    ("system", "plan"),
    # Two crops of a document are contrasted with all others of the batch, so their losses do not sum over half batches.
    [(system, plan) for system in sorted(SYSTEMS) for plan in SYSTEMS[system].instances if plan != "crops"],
)
def test_two_half_batches_sum_to_the_whole(system: str, plan: str, tiny_corpus: Path) -> None:
    _, objective, loader = tiny_parts(system, tiny_corpus, f"data.instances={plan}")
    objective.eval()
    (batch,) = some_batches(loader, 1)
    whole = objective(batch)
    sum(whole.losses.values()).backward()
    expected = gradients(objective)
    objective.zero_grad()
    halves = [objective(half) for half in split_rows(batch, batch.tokens.rows.n_rows // 2)]
    sum(sum(half.losses.values()) for half in halves).backward()
    for term, loss in whole.losses.items():
        torch.testing.assert_close(halves[0].losses[term] + halves[1].losses[term], loss, rtol=1e-5, atol=1e-5)
        assert halves[0].correct[term] + halves[1].correct[term] == whole.correct[term]
    for name, gradient in gradients(objective).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-4, msg=name)


def gradients(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@every_system
def test_a_recipe_survives_toml(system: str, tiny_corpus: Path) -> None:
    recipe = tiny_recipe(system, tiny_corpus)
    for comments in (False, True):
        text = to_toml(recipe, comments=comments)
        assert read_recipe(tomllib.loads(text), [], "again") == recipe


@every_system
def test_counts_are_known_before_the_forward(system: str, tiny_corpus: Path) -> None:
    _, objective, loader = tiny_parts(system, tiny_corpus)
    (batch,) = some_batches(loader, 1)
    step = objective(batch)
    assert set(step.losses) == set(objective.weights) == set(step.correct) | objective.penalties
    for term in objective.weights:
        assert 0 <= step.correct.get(term, 0) <= objective.counts(batch)[term]
    assert set(objective.eval()(batch).losses) == set(objective.weights) - objective.penalties


@every_system
def test_the_computation_is_the_same_twice_in_train_mode(system: str, tiny_corpus: Path) -> None:
    """Dropout is a function of the seed that the trainer sets for each micro-batch."""
    _, objective, loader = tiny_parts(system, tiny_corpus)
    objective.train()
    (batch,) = some_batches(loader, 1)
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(sum(objective(batch).losses.values()).item())
    assert losses[0] == losses[1] != losses[2]
