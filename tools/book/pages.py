"""A lesson as a page: what a learner is given, with the outputs of the worked lesson.

The text and code are those of notebooks/, which hold no solution; only outputs are taken from the
run of the worked lesson, cell by cell. Forms and drills, which need a kernel, become plain text.
"""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Callable

from bs4 import BeautifulSoup
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from grader.judging import registry
from grader.notebooks.release import is_written_answer
from labkit.display import inline_html
from labkit.predictions import Prediction

WIDGET = "application/vnd.jupyter.widget-view+json"
CONFRONTED = ">your prediction</th>"
HOW = "\nAnswer: `answers["
LETTERS = "abcdefghij"
ABOUT = """\
:::{{admonition}} Read here, write in the notebook
:class: tip
Here are the lesson's text, its pictures, and the outputs of one run of the worked lesson. You write
the functions in the notebook, where each is judged at once: `inferlab lab {number}`. Bodies that
are yours to write say `raise NotImplementedError` here.{more}
:::"""
WITH_SOLUTIONS = "\nUnder each of them its worked solution is folded in."
WRITTEN = "*Your answer goes into the notebook, in a cell of its own.*"
QUESTIONS = """\
*In the notebook each question has numbers of your own and is judged at once. Here they are with one
set of numbers, to think about.*"""
DRILL = "*In the notebook a timed drill with fresh numbers starts here.*"


def page(
    lesson: str, released: NotebookNode, worked: NotebookNode, solutions: bool = False
) -> NotebookNode:
    """The page of a lesson. solutions: fold each worked solution in under its exercise.

    released and worked have the same cells, by id. Raises ValueError where they do not.
    """
    by_id = {cell.id: cell for cell in worked.cells}
    if [cell.id for cell in released.cells] != list(by_id):
        raise ValueError(f"{lesson}: notebooks/ and solutions/ have other cells; run: make build")
    cells: list[NotebookNode] = []
    for cell in released.cells:
        cells += _cells(cell, by_id[cell.id], solutions)
    about = ABOUT.format(number=lesson[:2], more=WITH_SOLUTIONS if solutions else "")
    title = cells[0].source.partition("\n")
    cells[0].source = f"{title[0]}\n\n{about}\n{title[2]}"
    first = next((i for i, c in enumerate(cells) if _call(c.source) == "answers.ask"), None)
    if first is not None:
        cells.insert(first, new_markdown_cell(QUESTIONS, id="about-questions"))
    return new_notebook(cells=cells, metadata=released.metadata)


def _cells(given: NotebookNode, worked: NotebookNode, solutions: bool) -> list[NotebookNode]:
    if given.cell_type == "markdown":
        return _written(worked, solutions) if is_written_answer(given) else [given]
    if given.metadata.get("nbgrader", {}).get("solution"):
        return _exercise(given, worked, solutions)
    maker = MAKERS.get(_call(given.source), _shown)
    return maker(given, worked)


def _call(source: str) -> str:
    """The name of the function that the cell's last line calls: "check", "answers.ask"."""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a line for the shell
        return ""
    last = body[-1] if body else None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func)
    if isinstance(last, ast.Assign) and ast.unparse(last.targets[0]) == "answers":
        return "answers ="
    return "import" if body and all(_is_import(node) for node in body) else ""


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


# ---- what there is to read ---------------------------------------------------------------------


def _shown(given: NotebookNode, worked: NotebookNode) -> list[NotebookNode]:
    """The code, and what it put out."""
    return [_code(given.source, given.id, outputs=_still(worked.outputs))]


def _code(
    source: str, cell_id: str, *tags: str, outputs: list[NotebookNode] | None = None, **more: object
) -> NotebookNode:
    metadata = {"tags": list(tags), **more}
    return new_code_cell(source, id=cell_id, metadata=metadata, outputs=outputs or [])


def _still(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Outputs without what would need a kernel: widgets keep their text or their picture.

    Answers to predictions are folded away: the reader may still be guessing.
    """
    kept = []
    for output in outputs:
        data = {mime: text for mime, text in output.get("data", {}).items() if mime != WIDGET}
        if CONFRONTED in data.get("text/html", ""):
            data["text/html"] = revealed(data["text/html"])
        if output.output_type in {"display_data", "execute_result"}:
            kept.append(new_output("display_data", data=data))
        elif output.name == "stdout":
            kept.append(output)
    return kept


def _folded(given: NotebookNode, worked: NotebookNode) -> list[NotebookNode]:
    prompt = {"code_prompt_show": "What this lesson imports"}
    outputs = _still(worked.outputs)
    return [_code(given.source, given.id, "hide-input", outputs=outputs, mystnb=prompt)]


def _exercise(given: NotebookNode, worked: NotebookNode, solutions: bool) -> list[NotebookNode]:
    """Signature and docstring; answers to the questions are left out."""
    if given.source.startswith("answers["):
        return []
    cells = [_code(given.source, given.id, "exercise")]
    if solutions:
        text = re.sub(r"^ *### (BEGIN|END) SOLUTION\n?", "", worked.source, flags=re.MULTILINE)
        prompt = {"code_prompt_show": "Worked solution", "code_prompt_hide": "Worked solution"}
        cells.append(_code(text, f"{given.id}-worked", "hide-input", mystnb=prompt))
    return cells


def _written(worked: NotebookNode, solutions: bool) -> list[NotebookNode]:
    if not solutions:
        return [new_markdown_cell(WRITTEN, id=worked.id)]
    folded = (
        f"<details><summary>Sample answer and rubric</summary>\n\n{worked.source}\n\n</details>"
    )
    return [new_markdown_cell(folded, id=worked.id)]


# ---- what needs a kernel -----------------------------------------------------------------------


def _predict(given: NotebookNode, worked: NotebookNode) -> list[NotebookNode]:
    prediction = registry.prediction(_first_argument(given.source))
    form = {"text/html": prediction_html(prediction), "text/plain": prediction.question}
    outputs = [new_output("display_data", data=form)]
    return [_code(given.source, given.id, "remove-input", outputs=outputs)]


def prediction_html(prediction: Prediction) -> str:
    """The question of a prediction in a frame, with its choices."""
    pairs = zip(LETTERS, prediction.choices, strict=False)
    choices = "".join(f"<li>{letter}) {html.escape(choice)}</li>" for letter, choice in pairs)
    listed = f'<ul class="choices">{choices}</ul>' if choices else ""
    question = f"<b>Predict.</b> {inline_html(prediction.question)}"
    return f'<div class="predict" role="note">{question}{listed}</div>'


def _outputs_alone(given: NotebookNode, worked: NotebookNode) -> list[NotebookNode]:
    return [_code(given.source, given.id, "remove-input", outputs=_still(worked.outputs))]


def revealed(confrontation: str) -> str:
    """A confrontation without a learner's own prediction, behind a line to open."""
    soup = BeautifulSoup(confrontation, "html.parser")
    (caption,) = soup.find_all("caption")
    question = caption.extract().decode_contents()
    for row in soup.find_all("tr"):
        columns = row.find_all(["th", "td"])
        columns[0].decompose()  # the prediction
        columns[-1].decompose()  # how far it was off
    summary = f"<summary>You predicted: {question}</summary>"
    return f'<details class="predict">{summary}{soup}</details>'


def _question(given: NotebookNode, worked: NotebookNode) -> list[NotebookNode]:
    """The question, without how to type its answer into the notebook."""
    outputs = _still(worked.outputs)
    for output in outputs:
        output.data = {mime: text.partition(HOW)[0] for mime, text in output.data.items()}
    return [_code(given.source, given.id, "remove-input", outputs=outputs)]


def _drill(given: NotebookNode, worked: NotebookNode) -> list[NotebookNode]:
    return [new_markdown_cell(DRILL, id=given.id)]


def _left_out(given: NotebookNode, worked: NotebookNode) -> list[NotebookNode]:
    return []


def _first_argument(source: str) -> str:
    call = ast.parse(source).body[-1]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    return ast.literal_eval(call.value.args[0])


MAKERS: dict[str, Callable[[NotebookNode, NotebookNode], list[NotebookNode]]] = {
    "import": _folded,
    "predict": _predict,
    "confront": _outputs_alone,
    "answers =": _left_out,
    "answers.ask": _question,
    "answers.check": _left_out,
    "drill": _drill,
    "progress": _left_out,
}
