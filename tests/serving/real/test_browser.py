"""The playground in a browser: every panel works, in both languages, on wide and narrow screens, accessibly."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Server, serving
from visiting import NARROW, PATIENCE_MS, WIDE, Visit, opened_browser

from firth.inference.model import Model

# Each model with the panels tested on its page; together they are all panels.
PANELS = {
    "en": ("tokens", "input", "masks", "masking", "attention", "hidden", "learn", "layers", "similar"),
    "masked": ("next",),
    "gpt": ("write",),
    "classify": ("labels",),
    "regress": ("value",),
    "tag": ("entities",),
    "answer": ("answer",),
    "choose": ("choose",),
    "mt": ("cross",),
    "words": ("nearest",),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


@pytest.mark.parametrize(
    ("language", "width", "scheme"),
    [("en", WIDE, "light"), ("en", NARROW, "dark"), ("ko", WIDE, "dark"), ("ko", NARROW, "light")],
)
def test_every_panel_answers(browser: Any, server: Server, language: str, width: int, scheme: str) -> None:
    visit = Visit(browser, server.address, width, scheme)
    if language == "ko":
        visit.korean()
    faults = []
    for model, names in PANELS.items():
        visit.choose(model)
        for name in names:
            assert visit.run(name).strip() or visit.panel(name).locator(".answer svg").count(), name
            assert visit.panel(name).locator("h2 + .note").inner_text().strip(), f"{name} is not explained"
            for details in visit.panel(name).locator("details:not([open]) > summary").all():
                details.click()
        faults += [f"{model}: {one}" for one in visit.violations()]
        if (pixels := visit.overflow()) > 0:
            faults.append(f"{model}: the page is {pixels} pixels wider than the window")
    assert faults + visit.complaints == []
    visit.context.close()


def test_these_are_all_panels(browser: Any, server: Server, served_folders: dict[str, Path]) -> None:
    visit, found = Visit(browser, server.address, WIDE), set()
    for model in ("en", *served_folders):
        visit.choose(model)
        found |= set(visit.panels())
    assert found == {name for names in PANELS.values() for name in names}
    visit.context.close()


def test_the_answers_are_the_librarys(browser: Any, server: Server, mini: Model, predictors: dict[str, Any]) -> None:
    visit = Visit(browser, server.address, WIDE)
    (blank,) = mini.fill_mask(visit.panel("masks").locator("textarea").input_value(), top_k=5)
    shown = visit.run("masks").split("\n")
    assert [line for line in shown if line][::2] == [one.token for one in blank.candidates]
    text = visit.panel("tokens").locator("textarea").input_value()
    visit.run("tokens")
    tokens = visit.panel("tokens").locator(".token:not(.special)")
    assert [one.split()[0] for one in tokens.all_inner_texts()] == [one.token for one in mini.tokenize(text)]
    visit.choose("classify")
    best = max(predictors["classify"].predict([text])[0].probabilities.items(), key=lambda one: one[1])
    assert visit.run("labels").split()[:2] == [best[0], f"{best[1]:.3f}"]
    visit.choose("masked")
    assert f"{predictors['masked'].follows(text, 'He was very tired.'):.3f}" in visit.run("next")
    visit.context.close()


def test_a_head_is_chosen_on_the_map_of_all(browser: Any, server: Server, mini: Model) -> None:
    visit = Visit(browser, server.address, WIDE)
    panel, text = visit.panel("attention"), visit.panel("attention").locator("textarea").first.input_value()
    visit.run("attention")
    weights = mini.attention(text).weights
    n_layers, n_heads = weights.shape[:2]
    heads = panel.locator(".heads button")
    assert heads.count() == n_layers * n_heads
    for layer, head in ((0, 0), (1, 2), (n_layers - 1, n_heads - 1)):
        button = panel.get_by_role("button", name=f"Layer {layer + 1}, Head {head + 1}")
        button.click()
        assert panel.locator(".heads button[aria-pressed=true]").count() == 1
        assert button.get_attribute("aria-pressed") == "true"
        # A line for each visible weight, and a map of all weights.
        assert panel.locator("svg line").count() == int((np.round(weights[layer, head] * 255) >= 5).sum())
        opaque = button.locator("canvas").evaluate(
            """map => [...map.getContext('2d').getImageData(0, 0, map.width, map.height).data]
                .filter((_, i) => i % 4 === 3)"""
        )
        np.testing.assert_allclose(opaque, 255 * weights[layer, head].ravel(), atol=1)
    visit.context.close()


def test_names_of_points_do_not_cover_one_another(browser: Any, server: Server) -> None:
    for model in ("en", "ko", "words"):
        for width in (WIDE, NARROW):
            visit = Visit(browser, server.address, width)
            visit.choose(model)
            visit.run("hidden")
            assert visit.panel("hidden").locator("svg text.own").count() == (3 if model == "ko" else 4)
            covered = (
                visit.panel("hidden")
                .locator("svg")
                .evaluate(
                    """svg => {
                  const boxes = [...svg.querySelectorAll('text.point')].map((text) => text.getBBox());
                  const meet = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width
                    && a.y + 3 < b.y + b.height - 3 && b.y + 3 < a.y + a.height - 3;
                  return boxes.flatMap((a, i) => boxes.slice(0, i).filter((b) => meet(a, b))).length;
                }"""
                )
            )
            assert covered == 0, model
            visit.context.close()


def test_examples_are_in_a_language_that_the_model_knows(browser: Any, server: Server) -> None:
    visit = Visit(browser, server.address, WIDE)
    text = visit.panel("tokens").locator("textarea")
    for korean in (False, True):
        if korean:
            visit.korean()
        for model, word in (("en", "farmer"), ("words", "river"), ("ko", "농부가")):
            visit.choose(model)
            assert word in text.input_value(), (model, korean)
    assert "[UNK]" not in visit.run("tokens")
    visit.choose("en")
    text.fill("강가에")
    assert "1 / 3: 어휘에 없음" in visit.run("tokens")
    visit.context.close()


def test_the_best_layer_is_named(browser: Any, server: Server) -> None:
    visit = Visit(browser, server.address, WIDE)
    shown = visit.run("layers")
    assert re.search(r"Best layer: [0-4] \(\d+ %\); 95 % interval: [0-4]–[0-4]", shown), shown
    assert visit.panel("layers").locator("circle").count() == 5
    # With one layer there is nothing to compare.
    visit.choose("words")
    assert "layers" not in visit.panels() and "hidden" in visit.panels()
    visit.context.close()


def test_the_curl_commands_are_answered(browser: Any, server: Server) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    visit = Visit(browser, server.address, WIDE)
    visit.korean()
    for model in PANELS:
        visit.choose(model)
        for command in visit.page.locator("section pre").all_text_contents():
            words = [*shlex.split(command), "--fail", "--silent"]
            done = subprocess.run(words, capture_output=True, timeout=PATIENCE_MS / 1e3)
            assert done.returncode == 0 and done.stdout, command
    visit.context.close()


def test_it_is_used_without_a_mouse(browser: Any, server: Server) -> None:
    visit = Visit(browser, server.address, WIDE)
    old = visit.page.query_selector("section")
    visit.page.locator("#language").focus()
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_function("old => document.documentElement.lang === 'ko' && !old.isConnected", arg=old)
    panel = visit.panel("masks")
    panel.locator("textarea").focus()
    visit.page.keyboard.press("Tab")
    outline = visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert visit.page.evaluate("document.activeElement.type") == "submit" and outline != "none"
    visit.page.keyboard.press("Enter")
    panel.locator("meter").first.wait_for()
    # The answer arrives without losing the focus.
    assert visit.page.evaluate("document.activeElement.type") == "submit"
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Enter")
    assert panel.locator("details").get_attribute("open") is not None
    visit.context.close()


def test_a_refusal_is_shown_in_its_panel(browser: Any, server: Server) -> None:
    visit = Visit(browser, server.address, WIDE)
    panel = visit.panel("masks")
    panel.locator("textarea").fill("no mask")
    panel.locator("button[type=submit]").click()
    panel.locator(".wrong").wait_for()
    assert "[MASK]" in panel.locator(".wrong").inner_text()
    assert visit.violations() == []
    visit.context.close()


def test_a_key_is_typed_in_the_page(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRTH_API_KEY", "a-key-of-sixteen-letters")
    with serving("ko=firth-mini-ko") as locked:
        page = browser.new_page()
        page.goto(locked.address + "/")
        page.locator("#about", has_text="type it above").wait_for()
        assert not page.locator("section").count()
        page.fill("#key", "a-key-of-sixteen-letters")
        page.keyboard.press("Tab")
        page.locator("section[data-panel=masks] button[type=submit]").click()
        page.locator("section[data-panel=masks] meter").first.wait_for()
        commands = page.locator("section pre").all_text_contents()
        assert all("$FIRTH_API_KEY" in one and "a-key-of-sixteen-letters" not in one for one in commands)
        page.close()
