"""A trained model for the cells that measure, or a plain word why there is none."""

from __future__ import annotations

from functools import lru_cache

from inferlab import model as engine
from inferlab.checkpoints.fetch import SOURCES, NotFetched
from inferlab.model import TINY_MODELS, Model
from labkit.measure.device import grading, not_measured


def trained_model(name: str = "smollm2") -> Model | None:
    """The named model, loaded once a process; or None, with a note that says why.

    "smollm2" is fetched once; "tiny-target", "tiny-draft" and "tiny-moe" come with the course.
    None while a notebook is graded, and where the model was not fetched yet. Raises ValueError for
    an unknown name, and InvalidModelFile for a damaged file.
    """
    if name not in (*SOURCES, *TINY_MODELS):
        known = ", ".join((*SOURCES, *TINY_MODELS))
        raise ValueError(f"no model is called {name!r}; known: {known}")
    if grading():
        not_measured("measurements are skipped while grading")
        return None
    try:
        return _loaded(name)
    except NotFetched:
        megabytes = SOURCES[name].size_bytes / 1e6
        not_measured(
            f"needs the trained model: run `inferlab fetch {name}` once ({megabytes:.0f} MB)"
        )
        return None


@lru_cache(maxsize=4)
def _loaded(name: str) -> Model:
    return engine.load_model(name)
