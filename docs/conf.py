"""Settings of the documentation site; `make docs` builds it."""

import importlib
import inspect
import logging
import os
import re
import sys
import warnings
from pathlib import Path

os.environ.setdefault("CHUNKFLOW_DEVICE", "cpu")  # the gallery's pictures are the same on every machine
os.environ["CHUNKFLOW_RATES"] = "0"
os.environ.setdefault("MPLBACKEND", "agg")

from sphinx.util.logging import getLogger

import chunkflow

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))
messages = importlib.import_module("messages")
(DOCS / "reference" / "generated").mkdir(exist_ok=True)
(DOCS / "reference" / "generated" / "messages.md").write_text(messages.page(Path(chunkflow.__file__).parent))

project = "chunkflow"
author = "chunkflow developers"
copyright = "chunkflow developers"
version = release = chunkflow.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "gallery", "auto_gallery/*.ipynb", "auto_gallery/*.py"]

# Reference
autosummary_generate = True
autosummary_context = {
    # Classes of which most methods are those of a base that is not public.
    "with_inherited": ["Array", "MaskedArray", "TimeArray"],
    # What other parts of chunkflow ask for, which users need not know.
    "internal": {
        "Budget": "left, limit_on, pool, reserved, rest, turn",
        "ExistingArray": "axis, bounds, grown",
        "MaskedArray": "assembled, kept, of, operated, parts, storable, unmasked",
        "NewArray": "check_format, check_shape, chunks_of, has_path, inside_shards, is_file, said, with_labels",
        "Plan": "ahead, apart, batches, chains, deals, lends, loads, private, recycled, results, reuses, rows, "
        "slot_shape, slot_shapes, slots, steps, waiting",
        "Profile": "finished, held, landed, noted, span, started, wants_spans",
        "TimeArray": "assembled, kept, of, operated, parts, storable",
    },
}
autodoc_typehints = "none"  # docstrings say them
autodoc_default_options = {"member-order": "bysource"}
autodoc_mock_imports = ["torch"]
add_module_names = False
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_use_param = False
default_role = "py:obj"
# Inventories of other projects need a network, which only Read the Docs' machines are sure to have.
if os.environ.get("READTHEDOCS"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "xarray": ("https://docs.xarray.dev/en/stable", None),
        "dask": ("https://docs.dask.org/en/stable", None),
    }

# Pages
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

# Gallery
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 5,
    "write_computation_times": False,
    "remove_config_comments": True,
    "abort_on_example_error": False,
    "capture_repr": (),
    "image_scrapers": ("matplotlib",),
}
warnings.filterwarnings("ignore", message="Consolidated metadata")

# Looks
html_theme = "pydata_sphinx_theme"
html_title = "chunkflow"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "chunkflow"},
    "header_links_before_dropdown": 6,
    "show_prev_next": True,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "navbar_align": "left",
    "back_to_top_button": True,
}
html_sidebars = {"tutorial": [], "faq": [], "benchmarks": []}
linkcheck_timeout = 20
linkcheck_anchors = False

INCLUDE = re.compile(r"```\{include\} (\S+)\n```")
LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)#\s]+)((?:#[^)\s]+)?)\)")


def page_of(path):
    """The page of the site that shows a file of the project, or None."""
    if path.is_relative_to(DOCS) and path.suffix == ".md":
        return path
    return next((page for page, shown in included() if shown == path), None)


def included():
    """Pages that show a file from outside this folder, and that file."""
    for page in [*DOCS.glob("*.md"), *DOCS.glob("development/*.md")]:
        for name in INCLUDE.findall(page.read_text()):
            yield page, (page.parent / name).resolve()


def relinked(text, there, page):
    """A text's links, as written in the file `there`, made to be followed from `page`.

    Those to files that are on no page become plain text.
    """

    def link(match):
        words, target, heading = match.groups()
        found = (there.parent / target).resolve()
        if found.is_dir() and (found / "README.md").exists():
            found = found / "README.md"
        if found.is_relative_to(DOCS) and found.suffix != ".md" and found.is_file():
            return match[0]
        shown = page_of(found)
        if shown is None:
            return words
        return f"[{words}]({os.path.relpath(shown, page.parent)}{heading})"

    parts = re.split(r"(^ *```.*?^ *```)", text, flags=re.S | re.M)
    return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(parts))


def on_source(app, docname, source):
    page = Path(app.env.doc2path(docname))
    if page.suffix != ".md":
        return
    text = relinked(source[0], page, page) if not INCLUDE.search(source[0]) else source[0]
    for name in INCLUDE.findall(text):
        there = (page.parent / name).resolve()
        app.env.note_dependency(str(there))
        text = text.replace(f"```{{include}} {name}\n```", relinked(there.read_text(), there, page))
    text = re.sub(r"^(```python\n(?:(?!```).)*?)\n\n```$", r"\1\n```", text, flags=re.S | re.M)  # for doctest's sake
    if docname == "decisions/README":
        text += "\n```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\n```\n"
    source[0] = text


def on_docstring(app, what, name, obj, options, lines):
    """Paths of pages become links. Names of parameters become code, and no links to functions of the same name."""
    try:
        names = set(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        names = set()

    def parameter(match):
        return f"``{match[1]}``" if match[1] in names else match[0]

    lines[:] = [re.sub(r"``docs/(\w+)\.md``", r":doc:`/\1`", line) for line in lines]
    lines[:] = [re.sub(r"(?<![`:])`(\w+)`(?!`)", parameter, line) for line in lines]
    if what in ("property", "attribute"):  # what stands before a colon would be read as a type
        lines[:1] = [lines[0].replace(": ", "; ", 1)] if lines else []
    if "Attributes" in lines:  # "mean, var" would be read as a type and a name
        start = lines.index("Attributes")
        for i, line in enumerate(lines[start:], start):
            if re.match(r"\w+(, \w+)+( : |$)", line):
                names, colon, kind = line.partition(" : ")
                lines[i] = names.replace(", ", ",") + colon + kind


def on_signature(app, what, name, obj, options, signature, result):
    """Classes that users do not make show no arguments."""
    if what == "class" and "Parameters\n" not in (inspect.getdoc(obj) or ""):
        return "", None
    return None


class Told(logging.Handler):
    """Makes warnings of the errors that chunkflow logs: of an observer that fails, the picture would be empty."""

    def emit(self, record):
        getLogger("chunkflow.docs").warning("a script of the gallery logged: %s", record.getMessage())


def setup(app):
    logging.getLogger("chunkflow").addHandler(Told(logging.ERROR))
    app.connect("source-read", on_source)
    app.connect("autodoc-process-docstring", on_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", on_signature)
