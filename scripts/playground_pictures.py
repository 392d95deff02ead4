"""Write the pictures of docs/playground.md: docs/images/playground/*.png.

.venv/bin/python scripts/playground_pictures.py topics=runs/topics names=runs/names names-ko=runs/names-ko \
    answer=runs/answer mt=runs/mt gpt=runs/gpt words=runs/words

docs/playground.md says how to train the models; firth-mini-en and firth-mini-ko are served too, as en and ko. Pictures
of models that are not given stay unchanged.
With --every FOLDER each panel of each model is written there instead, wide and narrow, in both languages. Needs the
extra serve-test, Pillow, Chromium and fonts for Korean.
"""

import sys
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "serving" / "real"))

from running import PATIENT, serving  # noqa: E402
from visiting import NARROW, WIDE, Visit, opened_browser  # noqa: E402

FOLDER = ROOT / "docs" / "images" / "playground"
# Models by the language of the page, with the panels to be shown.
ENGLISH = {
    "en": ("tokens", "input", "masking", "masks", "attention", "hidden", "learn", "layers", "similar"),
    "topics": ("labels",),
    "names": ("entities",),
    "answer": ("answer",),
    "mt": ("cross",),
    "gpt": ("write",),
    "words": ("nearest", "hidden"),
}
KOREAN = {"ko": ("masks", "attention", "hidden"), "names-ko": ("entities",)}
# Distinguishes two pictures that would have the same name.
SUFFIXES = {("words", "hidden"): "-words"}
# Enough for the greys of the text and the few colours of the page.
COLOURS = 128
# Inputs typed before a panel runs; the others keep their own examples.
TYPED = {
    ("topics", "labels"): "The team won the final after extra time.",
    ("mt", "cross"): "Two dogs play in the snow.",
}


def main(arguments: list[str]) -> None:
    every = Path(arguments.pop(1)) if arguments[:1] == ["--every"] else None
    models = arguments[1:] if every else arguments
    names = ["en", "ko", *(model.partition("=")[0] for model in models)]
    with serving("en=firth-mini-en", "ko=firth-mini-ko", *models, *PATIENT) as server, opened_browser() as browser:
        if every is not None:
            write_every(browser, server.address, names, every)
            return
        FOLDER.mkdir(parents=True, exist_ok=True)
        for panels, width, korean in ((ENGLISH, WIDE, False), (KOREAN, NARROW, True)):
            visit = Visit(browser, server.address, width)
            if korean:
                visit.korean()
            for model in (model for model in panels if model in names):
                visit.choose(model)
                for name in panels[model]:
                    file = FOLDER / f"{name}{SUFFIXES.get((model, name), '-ko' * korean)}.png"
                    run(visit, model, name)
                    visit.panel(name).screenshot(path=file)
                    reduce(file)
            visit.context.close()
    sizes = [file.stat().st_size for file in FOLDER.glob("*.png")]
    print(f"{len(sizes)} pictures, {sum(sizes) / 1e3:.0f} kB together, {max(sizes) / 1e3:.0f} kB at most")


def write_every(browser: Any, address: str, names: list[str], folder: Path) -> None:
    """Write every panel of every model, for inspection."""
    folder.mkdir(parents=True, exist_ok=True)
    for language in ("en", "ko"):
        for width in (WIDE, NARROW):
            visit = Visit(browser, address, width)
            if language == "ko":
                visit.korean()
            for model in names:
                visit.choose(model)
                for name in visit.panels():
                    run(visit, model, name)
                    visit.panel(name).screenshot(path=folder / f"{model}-{name}-{language}-{width}.png")
            visit.context.close()


def run(visit: Visit, model: str, name: str) -> None:
    if text := TYPED.get((model, name)):
        visit.panel(name).locator("textarea").first.fill(text)
    visit.run(name)


def reduce(file: Path) -> None:
    """Reduce a picture to few colours, in place."""
    with Image.open(file) as picture:
        few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
