"""Settings of the documentation build."""

from importlib.metadata import version as installed_version

project = "fxforms"
author = "the fxforms developers"
copyright = "2026, the fxforms developers"
version = release = installed_version("fxforms")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"fxforms {release}"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
myst_heading_anchors = 3
