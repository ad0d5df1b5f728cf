"""What a student wrote, shown in nbgrader's pages: no script of theirs runs, nothing is fetched.

`sanitize` says what HTML may stay, `maths` turns TeX into MathML, `exporters` make formgrader's
submission page and the feedback page with both, `formgrader` puts the first in its place.
"""
