"""Sphinx's settings for the site. Nothing on a page may come from another computer."""

from pathlib import Path

project = "inferlab"
html_title = "inferlab"
language = "en"
extensions = ["myst_nb", "sphinx-mathjax-offline"]

nb_execution_mode = "off"  # tools/book/run.py has run them
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # the default is a CDN's
nb_render_markdown_format = "myst"
nb_merge_streams = True
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

html_theme = "sphinx_book_theme"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["book.css"]
html_favicon = str(Path(__file__).parent / "static" / "icon.svg")
html_sidebars = {"**": ["search-button-field.html", "sbt-sidebar-nav.html"]}
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_use_index = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "extra_footer": "inferlab. Text: CC BY 4.0. Code: Apache License 2.0.",
    "footer_content_items": ["extra-footer.html"],
    "home_page_in_toc": True,
    "navbar_start": [],
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],
    "search_bar_text": "Search the lessons",
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "use_repository_button": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
