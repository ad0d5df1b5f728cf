"""Write the generated part of README.md: the table of lessons.

Run: python -m tools.docs.readme_table
Exercises, minutes and points come from the registry; a lesson that it does not know is "to come".
"""

from __future__ import annotations

from grader.judging import registry
from labkit.files import write_whole
from tools import ROOT

README = ROOT / "README.md"
BEGIN, END = "<!-- lessons: begin (python -m tools.docs.readme_table) -->", "<!-- lessons: end -->"

PLAN = {
    "01_roofline": "what a forward pass costs",
    "02_forward_pass": "the transformer, whole",
    "03_prefill_decode": "two phases of generation",
    "04_kv_cache": "remember, do not recompute",
    "05_gqa": "fewer keys and values",
    "06_flash_attention": "exact attention, in tiles",
    "07_quantization": "fewer bytes",
    "08_speculative_sampling": "draft, then verify",
    "09_moe": "many experts, few active",
    "10_batching": "the serving engine",
    "11_latency_metrics": "what users feel",
    "12_capacity": "size it, then serve it",
}


def table() -> str:
    """The lessons, those that exist with their exercises, as a markdown table."""
    lines = [
        "| lesson | what it is about | exercises | questions | minutes for both |",
        "|---|---|---|---|---|",
    ]
    here = registry.lessons()
    for name, about in PLAN.items():
        cells = counts(name) if name in here else ["to come", "", ""]
        label = name.replace("_", " ")
        link = f"[{label}](src/lessons/{name}.py)" if name in here else label
        lines.append(f"| {link} | {about} | {' | '.join(cells)} |")
    return "\n".join(lines)


def counts(lesson: str) -> list[str]:
    """Exercises, questions, minutes for both."""
    n_exercises, n_questions = len(registry.exercises(lesson)), len(registry.questions(lesson))
    return [str(n_exercises), str(n_questions), str(minutes(lesson))]


def minutes(lesson: str) -> int:
    """Minutes for a lesson's exercises, and two for each of its questions."""
    exercises = sum(exercise.minutes for exercise in registry.exercises(lesson))
    return exercises + 2 * len(registry.questions(lesson))


def with_table(text: str) -> str:
    """The README's text with its generated part made anew."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    write_whole(README, with_table(README.read_text(encoding="utf-8")))
