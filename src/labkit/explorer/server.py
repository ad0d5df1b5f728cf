"""`inferlab explore`: the explorer as a page of this computer. The page asks; all is computed here.

Nothing is asked of anybody else: the page forbids itself every other address.
"""

from __future__ import annotations

import webbrowser
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import uvicorn
from fastapi import Body, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from labkit.display import inline_html
from labkit.explorer import controls as form
from labkit.explorer.formulas import sections
from labkit.explorer.pictures import PICTURES
from labkit.explorer.setting import adapted
from labkit.explorer.sheets import svg
from labkit.explorer.state import compute
from labkit.explorer.tasks import TASKS, Task, task
from labkit.explorer.words import figures, formula_table, status
from labkit.predictions import confrontation_html, lodge
from labkit.store import prediction as lodged

HOST = "127.0.0.1"
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; form-action 'none'; base-uri 'none'"
)


def app() -> FastAPI:
    """The page and the three things that it asks for: controls, a state, the tasks."""
    found = FastAPI(title="inferlab explorer", docs_url=None, redoc_url=None, openapi_url=None)
    # Only this computer's own names: another site cannot reach the page under a name of its own.
    found.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    found.add_exception_handler(ValueError, _refused)
    found.get("/", response_model=None)(page)
    found.get("/favicon.ico", response_model=None)(lambda: Response(status_code=204))
    found.get("/controls")(offered)
    found.get("/state")(state)
    found.get("/tasks")(tasks)
    found.post("/lodge")(lodge_one)
    return found


async def _refused(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"trouble": str(error)}, status_code=400)


def page() -> HTMLResponse:
    text = files("labkit.explorer").joinpath("page.html").read_text("utf-8")
    return HTMLResponse(text, headers={"Content-Security-Policy": POLICY})


def offered(lesson: str = "") -> dict[str, Any]:
    """What the form consists of, and where it begins."""
    focus = form.focus(lesson)
    listed = [{**asdict(c), "first": c.name in focus.first} for c in form.controls()]
    return {"controls": listed, "start": asdict(focus.start)}


def state(request: Request) -> dict[str, Any]:
    """Everything that the page shows of one setting. narrow: for a page with little room."""
    asked = dict(request.query_params)
    narrow = asked.pop("narrow", "") == "true"
    setting, why = adapted(form.read(asked))
    now = compute(setting)
    refused = form.attention_refused(setting.model)
    return {
        "setting": asdict(setting),
        "attention": [*form.attention_options(setting.model), *((*one, True) for one in refused)],
        "notes": [*setting.notes(), *filter(None, [why])],
        "fits": now.fits,
        "status": status(now),
        "figures": figures(now),
        "pictures": {
            name: {"svg": svg(name, now, narrow), "alt": one.alt(now)}
            for name, one in PICTURES.items()
        },
        "formulas": formula_table(sections(now)),
    }


# ---- predictions -------------------------------------------------------------------------------


def tasks() -> list[dict[str, Any]]:
    return [_described(one) for one in TASKS]


def lodge_one(
    task_id: str = Body(), prediction_id: str = Body(), value: str = Body()
) -> dict[str, Any]:
    """Keep a prediction. -> the task again, and the trouble with what was entered ("": none)

    What is so comes with it once all predictions of the task are lodged.
    """
    asked = task(task_id)
    found = {one.id: one for one in asked.predictions}
    if prediction_id not in found:
        raise ValueError(f"{prediction_id!r} is not asked there: {', '.join(found)}")
    trouble = ""
    try:
        if not value.strip():
            raise ValueError("nothing is entered yet")
        lodge(found[prediction_id], value)
    except ValueError as error:  # a slip of the learner's, to be read and mended
        trouble = str(error)
    return {**_described(asked), "trouble": trouble}


def _described(asked: Task) -> dict[str, Any]:
    """A task for the page. The answers and the moves come only after the predictions."""
    is_lodged = all(lodged(one.id) for one in asked.predictions)
    questions = [
        {
            "id": one.id, "question": inline_html(one.question), "choices": one.choices,
            "unit": one.unit or "", "example": one.example(), "lodged": _lodged_value(one.id),
        }
        for one in asked.predictions
    ]  # fmt: skip
    return {
        "id": asked.id, "title": asked.title, "story": asked.story, "start": asdict(asked.start),
        "questions": questions,
        "seen": [confrontation_html(one) for one in asked.predictions] if is_lodged else [],
        "moves": [[text, asdict(to)] for text, to in asked.moves] if is_lodged else [],
    }  # fmt: skip


def _lodged_value(prediction_id: str) -> str | None:
    found = lodged(prediction_id)
    return found.value if found else None


# ---- the command -------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """Says where the page is, and opens it, once it can be had."""

    lesson, open_browser = "", True

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        address = f"http://{HOST}:{port}/" + (f"?lesson={self.lesson}" if self.lesson else "")
        print(f"the explorer is at {address}  (end it with Ctrl-C)", flush=True)
        if self.open_browser:
            webbrowser.open(address)


def run(port: int = 0, lesson: str = "", open_browser: bool = True) -> int:
    """Serve the page until Ctrl-C; port 0 is any that is free. -> exit code"""
    form.focus(lesson)  # a wrong one is refused before anything is opened
    server = _Server(uvicorn.Config(app(), host=HOST, port=port, log_level="warning"))
    server.lesson, server.open_browser = lesson, open_browser
    server.run()
    return 0
