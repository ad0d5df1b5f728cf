"""How inferlab is packed: pip calls backend.py, by pyproject.toml's backend-path.

backend adds the course to setuptools' wheel; student_edition takes the hidden cases out. Neither
imports anything but the standard library and setuptools.
"""
