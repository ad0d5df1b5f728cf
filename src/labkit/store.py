"""The learner's own data folder: progress and predictions, as JSON that a person can read.

Nothing here may stop a lesson. When the folder cannot be written (read-only, full, locked by
another program, written by a newer inferlab), a record is kept in memory for this session, a
warning says so once, and the next write that works saves it.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_data_dir

from inferlab.data import IS_FOR_STUDENTS
from labkit.files import dated, write_whole

SCHEMA = 2  # 2: moments of an exercise; confronted and measured of a prediction
OUTCOMES = ("passed", "failed", "not run")
LOCK_SECONDS = 2.0
_TIMES = ("first", "last", "passed_at", "solution_shown")
_SECTIONS = {"progress.json": "exercises", "predictions.json": "predictions"}

Change = Callable[[dict[str, Any]], None]

_pending: dict[Path, list[Change]] = {}
_warned: set[Path] = set()


@dataclass(frozen=True)
class Lodged:
    """A prediction as first lodged, with what was said later in revisions (value, when).

    confronted: when the answer was last shown beside it; measured: what was measured then, a number
    in base units or a choice. None where that has not happened.
    """

    value: str
    when: str
    revisions: tuple[tuple[str, str], ...] = ()
    confronted: str | None = None
    measured: str | None = None

    @property
    def moments(self) -> tuple[str, ...]:
        """When something was said or shown."""
        later = tuple(when for _, when in self.revisions)
        return (self.when, *later, *((self.confronted,) if self.confronted else ()))


def home() -> Path:
    """The learner's data folder: $INFERLAB_HOME, or the system's place for user data."""
    chosen = os.environ.get("INFERLAB_HOME", "").strip()
    return Path(chosen or user_data_dir("inferlab", appauthor=False)).expanduser().absolute()


def lab_mode() -> bool:
    """True where an instructor has switched solutions off: INFERLAB_LAB_MODE=1, or the edition."""
    said = os.environ.get("INFERLAB_LAB_MODE", "").strip().lower()
    return IS_FOR_STUDENTS or said in {"1", "true", "yes", "on"}


# ---- progress ----------------------------------------------------------------------------------


def record_attempt(exercise_id: str, outcome: str, when: datetime | str | None = None) -> None:
    """Note one judgement. "not run" (nothing written yet) is noted but is no attempt."""
    outcome = str(outcome)
    if outcome not in OUTCOMES:
        raise ValueError(f"outcome {outcome!r} is not one of {', '.join(OUTCOMES)}")
    moment = _moment(when)

    def change(exercises: dict[str, Any]) -> None:
        entry = exercises.setdefault(exercise_id, {})
        _note(entry, moment)
        entry["outcome"] = outcome
        entry["last"] = moment
        if outcome != "not run":
            entry["attempts"] = entry.get("attempts", 0) + 1
            entry.setdefault("first", moment)
        if outcome == "passed":
            entry.setdefault("passed_at", moment)

    _update("progress.json", change)


def record_hint(exercise_id: str, n_hints: int = 3, when: datetime | str | None = None) -> int:
    """Note that the next hint is shown; return its step: 0, 1, … and at most n_hints - 1."""
    moment = _moment(when)

    def change(exercises: dict[str, Any]) -> None:
        entry = exercises.setdefault(exercise_id, {})
        _note(entry, moment)
        entry["hints"] = min(entry.get("hints", 0) + 1, n_hints)

    _update("progress.json", change)
    return status(exercise_id)["hints"] - 1


def record_solution_shown(exercise_id: str, when: datetime | str | None = None) -> None:
    """Note when the solution was first shown."""
    moment = _moment(when)

    def change(exercises: dict[str, Any]) -> None:
        entry = exercises.setdefault(exercise_id, {})
        _note(entry, moment)
        entry.setdefault("solution_shown", moment)

    _update("progress.json", change)


def attempts(exercise_id: str) -> int:
    """How often this exercise was judged passed or failed."""
    return status(exercise_id)["attempts"]


def status(exercise_id: str) -> dict[str, Any]:
    """Everything known of one exercise; the same keys also when nothing is.

    attempts, hints: int; outcome (the latest), first, last, passed_at, solution_shown: str or None;
    moments: when it was judged or a hint or solution was shown, in the order of recording
    """
    return _with_defaults(_read("progress.json").get(exercise_id, {}))


def all_progress() -> dict[str, dict[str, Any]]:
    """exercise id -> status, for every exercise that was ever touched."""
    return {name: _with_defaults(entry) for name, entry in _read("progress.json").items()}


def forget(exercise_ids: Iterable[str]) -> Path | None:
    """Drop the progress of these exercises; return the dated copy of the file as it was, if any."""
    names = tuple(exercise_ids)
    path = home() / "progress.json"
    copy = None
    try:
        if path.is_file():
            copy = dated(path, "copy")
            shutil.copy2(path, copy)
    except OSError as trouble:
        _warn(f"could not keep a copy of {path} ({_reason(trouble)}); nothing was forgotten")
        return None

    def change(exercises: dict[str, Any]) -> None:
        for name in names:
            exercises.pop(name, None)

    _update("progress.json", change)
    return copy


def _with_defaults(entry: dict[str, Any]) -> dict[str, Any]:
    counts = {key: entry.get(key, 0) for key in ("attempts", "hints")}
    texts = {key: entry.get(key) for key in ("outcome", *_TIMES)}
    return counts | texts | {"moments": _moments(entry)}


def _moments(entry: dict[str, Any]) -> list[str]:
    """The recorded moments; of an entry of schema 1 the few that it kept."""
    kept = {entry[key] for key in _TIMES if key in entry}
    return list(entry.get("moments", sorted(kept)))


def _note(entry: dict[str, Any], moment: str) -> None:
    """Add a moment at which something happened. Run All judges many times within a second."""
    moments = _moments(entry)
    entry["moments"] = moments if moment in moments[-1:] else [*moments, moment]


# ---- predictions -------------------------------------------------------------------------------


def record_prediction(
    prediction_id: str, value: str, when: datetime | str | None = None
) -> Lodged | None:
    """Lodge a prediction: the first value stays the lodged one, a later one is a revision."""
    moment = _moment(when)

    def change(predictions: dict[str, Any]) -> None:
        entry = predictions.setdefault(prediction_id, {"value": str(value), "when": moment})
        if entry["when"] != moment or entry["value"] != str(value):
            entry.setdefault("revisions", []).append({"value": str(value), "when": moment})

    _update("predictions.json", change)
    return prediction(prediction_id)


def prediction(prediction_id: str) -> Lodged | None:
    """The lodged prediction, or None."""
    return all_predictions().get(prediction_id)


def all_predictions() -> dict[str, Lodged]:
    """prediction id -> what was lodged, for every prediction that was."""
    return {name: _lodged(entry) for name, entry in _read("predictions.json").items()}


def _lodged(entry: dict[str, Any]) -> Lodged:
    revisions = tuple((later["value"], later["when"]) for later in entry.get("revisions", ()))
    later = (entry.get("confronted"), entry.get("measured"))
    return Lodged(entry["value"], entry["when"], revisions, *later)


def record_confronted(
    prediction_id: str, measured: str | None = None, when: datetime | str | None = None
) -> None:
    """Note that the answer was shown beside a lodged prediction, and what was measured, if any."""
    moment = _moment(when)

    def change(predictions: dict[str, Any]) -> None:
        entry = predictions.get(prediction_id)
        if entry is not None:
            entry["confronted"] = moment
            if measured is not None:
                entry["measured"] = measured

    _update("predictions.json", change)


# ---- the files ---------------------------------------------------------------------------------


class _DamagedError(Exception):
    """The file is not what this version writes: damaged."""


class _NewerError(OSError):
    """The file was written by a newer inferlab, so this one leaves it alone."""


def _read(name: str) -> dict[str, Any]:
    """The section of a file, with the records that wait for a write laid on top."""
    path = home() / name
    section: dict[str, Any] = {}
    if not _autograding():
        try:
            section = _section_or_reset(path)
        except OSError as trouble:
            _warn(
                f"{path} cannot be read ({_reason(trouble)}); this session goes on without",
                path.parent,
            )
    for change in _pending.get(path, ()):
        change(section)
    return section


def _update(name: str, change: Change) -> None:
    """Read, change and replace a file under its lock, or keep the change for later and say so."""
    path = home() / name
    waiting = _pending.setdefault(path, [])
    waiting.append(change)
    if _autograding():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path):
            section = _section_or_reset(path)
            for each in waiting:
                each(section)
            write_whole(path, _as_text(name, section))
        waiting.clear()
    except (OSError, NotImplementedError) as trouble:
        _warn(
            f"{path} cannot be written ({_reason(trouble)}). Your work is not affected; what you "
            "do is remembered until this session ends, and saved if writing works again. "
            "INFERLAB_HOME can name another folder.",
            path.parent,
        )


def _as_text(name: str, section: dict[str, Any]) -> str:
    document = {"schema": SCHEMA, _SECTIONS[name]: section}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _autograding() -> bool:
    """Grading somebody's notebook neither reads nor writes the grader's own progress."""
    return os.environ.get("NBGRADER_EXECUTION", "") == "autograde"


def _lock(path: Path) -> FileLock:
    return FileLock(path.with_name(path.name + ".lock"), timeout=LOCK_SECONDS, is_singleton=True)


def _section_or_reset(path: Path) -> dict[str, Any]:
    """The file's section; a damaged file is moved aside and a fresh section returned."""
    try:
        return _section(path)
    except _DamagedError:
        pass
    with _lock(path):  # another process may have moved it in the meantime: look again
        try:
            return _section(path)
        except _DamagedError as damage:
            aside = dated(path, "damaged")
            os.replace(path, aside)
            _warn(f"{path.name} was damaged ({damage}). It is kept as {aside}; starting fresh.")
            return {}


def _section(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as damage:
        raise _DamagedError("not UTF-8 text") from damage
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as damage:
        raise _DamagedError(f"not JSON: {damage}") from damage
    return _checked(document, path.name)


def _checked(document: Any, name: str) -> dict[str, Any]:
    if not isinstance(document, dict) or not isinstance(document.get("schema"), int):
        raise _DamagedError("no schema number")
    if document["schema"] > SCHEMA:
        raise _NewerError(
            f"written by a newer inferlab: schema {document['schema']}, known {SCHEMA}"
        )
    section = document.get(_SECTIONS[name])
    fits = _fits_exercise if name == "progress.json" else _fits_prediction
    if not isinstance(section, dict) or not all(fits(entry) for entry in section.values()):
        raise _DamagedError(f"{_SECTIONS[name]} is not as written by inferlab")
    return section


def _fits_exercise(entry: Any) -> bool:
    return isinstance(entry, dict) and all(_fits_field(*field) for field in entry.items())


def _fits_field(key: str, value: Any) -> bool:
    if key == "moments":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    return isinstance(value, int if key in ("attempts", "hints") else str)


def _fits_prediction(entry: Any) -> bool:
    later = ("confronted", "measured")
    if not _is_said(entry) or not all(isinstance(entry.get(key, ""), str) for key in later):
        return False
    revisions = entry.get("revisions", [])
    return isinstance(revisions, list) and all(_is_said(later) for later in revisions)


def _is_said(entry: Any) -> bool:
    keys = ("value", "when")
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in keys)


def _moment(when: datetime | str | None) -> str:
    if isinstance(when, str):
        return when
    return (when or datetime.now()).astimezone().isoformat(timespec="seconds")


def _reason(trouble: BaseException) -> str:
    if isinstance(trouble, Timeout):
        return f"another program has held its lock for {LOCK_SECONDS:g} s"
    return getattr(trouble, "strerror", None) or str(trouble) or type(trouble).__name__


def _warn(message: str, once_for: Path | None = None) -> None:
    """Warn; of trouble that lasts (once_for names its place) only the first time."""
    if once_for in _warned:
        return
    if once_for is not None:
        _warned.add(once_for)
    warnings.warn(message, UserWarning, stacklevel=4)
