"""The playground: it loads nothing from elsewhere, and asks for what there is."""

import hashlib
import re
from importlib.resources import files

from served import Client, Serve

from firth.serving.access import Access
from firth.serving.app import ROUTES
from firth.serving.playground import PAGE

STATIC = files("firth.serving") / "static"
SCRIPT = (STATIC / "playground.js").read_text("utf-8")


def test_the_page_comes_from_the_server_and_needs_no_key(serve: Serve) -> None:
    access = Access(keys=(hashlib.sha256(b"a-key-of-sixteen-letters").digest(),))

    async def work(client: Client) -> list[tuple[int, str]]:
        paths = ["/", *(f"/playground/{name}" for name in PAGE), "/playground/app.py"]
        found = [await client.get(path) for path in paths]
        assert all(one.headers["content-security-policy"].startswith("default-src 'self'") for one in found)
        posted = await client.post("/", {"inputs": "a"})
        assert posted.status_code == 401, "the same path answers questions with a key alone"
        return [(one.status_code, one.headers["content-type"]) for one in found]

    types = [PAGE["index.html"], *PAGE.values()]
    assert serve(work, "classify", access=access) == [*((200, kind) for kind in types), (404, "application/json")]


def test_no_part_names_another_host() -> None:
    for name in PAGE:
        text = (STATIC / name).read_text("utf-8")
        # The namespace of SVG is a name, and nothing that is loaded.
        assert set(re.findall(r"(?:https?:)?//[\w.]+\.\w+", text)) <= {"http://www.w3.org"}
        assert "innerHTML" not in text and "style=" not in text and "onclick=" not in text


def test_it_asks_for_routes_that_there_are() -> None:
    known = {route.path for route in ROUTES}
    paths = re.findall(r'path: "([^"]+)"', SCRIPT)
    assert len(paths) == 8
    assert {f"/models/{{model}}{path}" for path in paths} <= known
    assert {"/v1/models", "/models/{model}/info"} <= known


def test_both_languages_have_the_same_words() -> None:
    english, korean = re.findall(r"^  (?:en|ko): \{(.*?)^  \},", SCRIPT, flags=re.MULTILINE | re.DOTALL)[:2]
    assert re.findall(r"(\w+): \"", english) == re.findall(r"(\w+): \"", korean)
    used = set(re.findall(r'say\("(\w+)"\)', SCRIPT)) | set(re.findall(r'name: "(\w+)"', SCRIPT))
    assert used <= set(re.findall(r"(\w+): \"", english))
