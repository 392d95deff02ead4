"""The whole Transformer, and its greedy search, against `transformers`' Marian with the same random weights."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from firth.data.rows import pack_lists
from firth.inference.decoding import greedy
from firth.models.config import TransformerConfig
from firth.models.transformer import TransformerEncoder, interleaved
from firth.objectives.config import TranslationConfig
from firth.objectives.translation import Translation
from firth.packed import from_padded, to_padded

transformers = pytest.importorskip("transformers")

PAD, END, V, WIDTH, LAYERS = 0, 2, 31, 16, 2
SOURCES = [[5, 6, 7, 8, 9, END], [10, 11, END], [12, 13, 14, 15, END]]
WRITTEN = [[PAD, 20, 21], [PAD, 22, 23, 24, 25], [PAD, 26]]  # Marian starts with the pad token


def marian() -> Any:
    config = transformers.MarianConfig(
        vocab_size=V,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        activation_function="relu",
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=END,
        forced_eos_token_id=None,
        decoder_start_token_id=PAD,
        max_position_embeddings=40,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = transformers.MarianMTModel(config).double()
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        for side in (model.model.encoder, model.model.decoder):
            # Its sinusoids differ from ours: copy our table and compare the rest.
            side.embed_positions.weight.copy_(interleaved(40, WIDTH))
    return model


def ours(theirs: Any) -> Translation:
    config = TransformerConfig(
        vocab_size=V,
        width=WIDTH,
        n_layers=LAYERS,
        n_heads=2,
        feed_forward_width=24,
        dropout=0.0,
        attention_bias=True,
        norm_epsilon=1e-5,
    )
    objective = Translation(TransformerEncoder(config), TranslationConfig(label_smoothing=0.0)).double()

    def joint(attention: Any, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        parts = [getattr(attention, f"{name}_proj") for name in names]
        return {kind: torch.cat([getattr(part, kind) for part in parts]) for kind in ("weight", "bias")}

    inner = theirs.model
    objective.encoder.pieces.weight.data.copy_(inner.shared.weight)
    for block, layer in zip(objective.encoder.blocks, inner.encoder.layers, strict=True):
        block.attention.query_key_value.load_state_dict(joint(layer.self_attn, ("q", "k", "v")))
        block.attention.output.load_state_dict(layer.self_attn.out_proj.state_dict())
        block.attention_norm.load_state_dict(layer.self_attn_layer_norm.state_dict())
        block.feed_forward.load_state_dict(layer.fc1.state_dict())
        block.feed_forward_output.load_state_dict(layer.fc2.state_dict())
        block.feed_forward_norm.load_state_dict(layer.final_layer_norm.state_dict())
    for block, layer in zip(objective.decoder.blocks, inner.decoder.layers, strict=True):
        block.attention.query_key_value.load_state_dict(joint(layer.self_attn, ("q", "k", "v")))
        block.attention.output.load_state_dict(layer.self_attn.out_proj.state_dict())
        block.attention_norm.load_state_dict(layer.self_attn_layer_norm.state_dict())
        block.cross_attention.query.load_state_dict(joint(layer.encoder_attn, ("q",)))
        block.cross_attention.key_value.load_state_dict(joint(layer.encoder_attn, ("k", "v")))
        block.cross_attention.output.load_state_dict(layer.encoder_attn.out_proj.state_dict())
        block.cross_attention_norm.load_state_dict(layer.encoder_attn_layer_norm.state_dict())
        block.feed_forward.inner.load_state_dict(layer.fc1.state_dict())
        block.feed_forward.output.load_state_dict(layer.fc2.state_dict())
        block.feed_forward_norm.load_state_dict(layer.final_layer_norm.state_dict())
    return objective


def padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = pack_lists(rows)
    return to_padded(tokens.ids, tokens.rows, fill=float(PAD))


@pytest.mark.parametrize("training", [False, True])
def test_logits_and_gradients(training: bool) -> None:
    theirs = marian().train(training)
    objective = ours(theirs).train(training)
    ids, real = padded(SOURCES)
    written, written_real = padded(WRITTEN)
    out = theirs(
        input_ids=ids,
        attention_mask=real.long(),
        decoder_input_ids=written,
        decoder_attention_mask=written_real.long(),
    )
    expected, _ = from_padded(out.logits, written_real)
    source, tokens = objective.encoder(pack_lists(SOURCES)), pack_lists(WRITTEN)
    embedding = objective.encoder.piece_embedding
    found = F.linear(objective.decoder(tokens, embedding, source.top, source.rows), embedding)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    label = torch.arange(len(found)) + 15
    for logits in (found, expected):
        F.cross_entropy(logits, label).backward()
    # One matrix gets the gradients of source, target and output; Marian gives its pad token none as an input.
    torch.testing.assert_close(embedding.grad[1:], theirs.model.shared.weight.grad[1:], rtol=0, atol=1e-9)
    cross, other = objective.decoder.blocks[1].cross_attention, theirs.model.decoder.layers[1].encoder_attn
    torch.testing.assert_close(cross.query.weight.grad, other.q_proj.weight.grad, rtol=0, atol=1e-9)


def test_greedy_search() -> None:
    theirs = marian().eval()
    objective = ours(theirs).eval()
    ids, real = padded(SOURCES)
    generated = theirs.generate(
        input_ids=ids, attention_mask=real.long(), num_beams=1, do_sample=False, max_new_tokens=12, bad_words_ids=None
    )
    with torch.inference_mode():
        state = objective.begin(pack_lists(SOURCES))
        found = greedy(objective.advance, state, torch.full((3,), PAD), end_id=END, most=[12] * 3)
    for hypothesis, row in zip(found, generated.tolist(), strict=True):
        expected = row[1:]
        expected = expected[: expected.index(END)] if END in expected else expected
        assert hypothesis.ids == expected[: len(hypothesis.ids)] and len(hypothesis.ids) == len(expected)
