"""Settings of the documentation site: ``make docs`` builds it into docs/_build, and fails on any warning."""

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

project = "Firth"
author = "the Firth authors"
project_copyright = "the Firth authors, Apache-2.0"
try:
    release = importlib.metadata.version("firth")
except importlib.metadata.PackageNotFoundError:  # read from a source tree that is not installed
    release = "source tree"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "Firth"
html_show_sourcelink = False
html_copy_source = False
pygments_style = "friendly"
nitpicky = True
# Names of libraries whose own pages are not linked, and of ours that the reference describes by their fields.
nitpick_ignore_regex = [(r"py:.*", r"(?!firth\.).*"), (r"py:.*", r"firth\.(?!load$|Model$).*")]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"
autodoc_member_order = "bysource"


class OutsideLinks(SphinxTransform):
    """Show a link to a file of the repository that is no page of the site as plain text; a broken one still warns."""

    default_priority = 990  # after the page is parsed, before files to download are collected

    def apply(self, **kwargs: Any) -> None:
        """Replace such links in one page."""
        links = [*self.document.findall(addnodes.pending_xref), *self.document.findall(addnodes.download_reference)]
        for link in links:
            if self._is_outside(link.get("reftarget", "")):
                link.replace_self(nodes.inline("", "", *link.children))

    def _is_outside(self, target: str) -> bool:
        path = (Path(self.env.doc2path(self.env.docname)).parent / target).resolve()
        return any(
            found.exists() and not found.is_relative_to(HERE) for found in (path, path.with_name(f"{path.name}.md"))
        )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register what this site adds to Sphinx."""
    app.add_transform(OutsideLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
