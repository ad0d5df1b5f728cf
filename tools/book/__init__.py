"""The static site: lessons as pages, with their pictures and search.

`make site` runs __main__.py: run executes each worked lesson, pages puts its outputs into the
released one, front makes the first page, conf.py is Sphinx's.
"""
