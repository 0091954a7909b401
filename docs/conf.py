"""How Sphinx builds the documentation site: ``make docs``."""

import sys
from pathlib import Path

from hpcprof import __version__

sys.path.insert(0, str(Path(__file__).parent))

project = "hpcprof"
author = "the hpcprof developers"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "command_reference",
    "gallery",
]
exclude_patterns = ["data"]
smartquotes = False  # two dashes are an option

myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]

# Of a console only what is typed is copied.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_copy_empty_lines = False

autodoc_member_order = "bysource"
autodoc_typehints = "description"  # of what has no words for them: the NumPy docstrings do
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = False
default_role = "code"  # the docstrings write `name` for code

html_theme = "furo"  # its fonts, styles and scripts are all in the build: pages request nothing elsewhere
html_title = f"hpcprof {version}"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
