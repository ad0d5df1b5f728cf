"""The report as one HTML page: light and dark, on a screen or on paper, nothing loaded."""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import datetime

from labkit.display import inline_html
from labkit.interview import pictures
from labkit.interview.bank import topic_title
from labkit.interview.summary import Met, Report, TopicScore
from labkit.predictions import is_near

MOST, MOST_MET = 5, 10  # topics in a line; misconceptions that leave it one printed page
CSS = """
:root { color-scheme: light dark; --ink: #22252b; --soft: #5b616b; --page: #fff; --line: #d3d7dd;
  --bar: #2f6fb3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #a9b0ba; --page: #17191d;
  --line: #3a3f47; --bar: #6fb1f2; } }
@media print { :root { --ink: #000; --soft: #333; --page: #fff; --line: #bbb; --bar: #2f6fb3;
  } @page { size: A4; margin: 11mm; } body { font-size: 8.4pt !important;
  line-height: 1.32 !important; padding: 0 !important; max-width: none !important; }
  svg { max-width: 18rem !important; } svg text { font-size: 19px !important; }
  section { margin-bottom: .8em !important; }
  .facts { margin: .4em 0 .6em !important; } header { margin-bottom: .7em !important; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 68rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6em; margin: 0; } h2 { font-size: 1.12em; margin: 0 0 .5em; }
p { margin: .3em 0; } .soft { color: var(--soft); }
.facts { display: flex; flex-wrap: wrap; gap: .3em 2.2em; margin: .8em 0 1.2em; padding: 0;
  list-style: none; } .facts b { font-size: 1.35em; display: block; line-height: 1.2; }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 1.2em 2.2em; align-items: start; }
@media (max-width: 60rem) { .two { grid-template-columns: 1fr; } }
@media print { .two { grid-template-columns: 10fr 11fr; gap: .6em 1.4em; } }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .28em .7em .28em 0;
  border-bottom: 1px solid var(--line); } th { font-weight: 600; color: var(--soft); }
td.n, th.n { text-align: right; white-space: nowrap; }
.share { display: inline-block; width: 4.2em; height: .7em; border: 1px solid var(--bar);
  margin-right: .5em; } .share i { display: block; height: 100%; background: var(--bar); }
header { margin-bottom: 1.4em; } .cured td { color: var(--soft); } section { margin: 0 0 1.4em; }
@media (max-width: 30rem) { body { font-size: 14px; padding: .8rem; } .share { display: none; }
  th, td { padding-right: .4em; } td { white-space: normal !important; } }
svg { width: 100%; max-width: 40rem; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 16px; paint-order: stroke; stroke: var(--page);
  stroke-width: 5px; } .axis { stroke: var(--line); }
.ideal { stroke: var(--soft); stroke-dasharray: 4 4; }
.line { fill: none; stroke: var(--bar); stroke-width: 2; } .dot { fill: var(--bar); }
"""


def page(report: Report, now: datetime) -> str:
    """The whole page as text."""
    day = f"{now.astimezone().day} {now.astimezone():%B %Y}"
    left = _topics(report) + _section("History", _history(report))
    right = _met(report) + _section("Calibration", _calibration(report))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Interview practice, {day}</title><style>{CSS}</style></head><body>"
        f'<header><h1>Interview practice</h1><p class="soft">{day}, from the history on this '
        f"computer</p>{_facts(report)}</header>"
        f'<main class="two"><div>{left}</div><div>{right}</div></main></body></html>\n'
    )


def _facts(report: Report) -> str:
    strong = _named(report.strengths[:MOST]) or "none yet"
    weak = _named([score for score in report.topics[::-1] if score.verdict == "to work on"][:MOST])
    advice = f" <b>To work on:</b> {weak}." if weak else ""
    facts = {
        "answers": f"{report.n_answers}",
        "of the marks": f"{report.share:.0%}" if report.n_answers else "–",
        "misconceptions open": f"{sum(not met.cured for met in report.met)}",
        "questions due now": f"{report.n_due}",
        "due within a week": f"{report.n_due_week}",
        "skipped": f"{report.n_skipped}",
    }
    items = "".join(f"<li><b>{value}</b>{name}</li>" for name, value in facts.items())
    return f'<ul class="facts">{items}</ul><p><b>Strengths:</b> {strong}.{advice}</p>'


def _named(scores: Sequence[TopicScore]) -> str:
    return ", ".join(html.escape(topic_title(score.topic)) for score in scores)


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def _topics(report: Report) -> str:
    if not report.topics:
        return _section("Topics", '<p class="soft">No answers yet: inferlab drill asks some.</p>')
    rows = "".join(_topic_row(score) for score in report.topics)
    head = (
        '<tr><th scope="col">topic</th><th scope="col">marks</th><th scope="col" class="n">answers'
        '</th><th scope="col" class="n">pace</th><th scope="col">verdict</th></tr>'
    )
    note = '<p class="soft">Pace: time taken over the time that a practised reader takes.</p>'
    return _section("Topics", f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>{note}")


def _topic_row(score: TopicScore) -> str:
    pace = f"{score.pace:.1f}×" if score.pace is not None else "–"
    bar = f'<span class="share"><i style="width:{score.share:.0%}"></i></span>{score.share:.0%}'
    return (
        f'<tr><td>{html.escape(topic_title(score.topic))}</td><td style="white-space:nowrap">{bar}'
        f'</td><td class="n">{score.n}</td><td class="n">{pace}</td><td>{score.verdict}</td></tr>'
    )


def _met(report: Report) -> str:
    if not report.met:
        return _section("Misconceptions met", '<p class="soft">None so far.</p>')
    rows = "".join(_met_row(met) for met in report.met[:MOST_MET])
    n_more = len(report.met) - MOST_MET
    more = f'<p class="soft">And {n_more} more, met less often.</p>' if n_more > 0 else ""
    head = (
        '<tr><th scope="col">misconception, and its cure</th><th scope="col">lesson</th>'
        '<th scope="col" class="n">met</th></tr>'
    )
    return _section(
        "Misconceptions met", f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>{more}"
    )


def _met_row(met: Met) -> str:
    state = f", right {met.right_since} times since" if met.cured else ""
    return (
        f"<tr{' class=cured' * met.cured}><td><b>{inline_html(met.what.name)}</b>{state}<br>"
        f"{inline_html(met.what.cure)}</td>"
        f'<td style="white-space:nowrap">{html.escape(topic_title(met.what.lesson))}</td>'
        f'<td class="n">{met.times}×</td></tr>'
    )


def _history(report: Report) -> str:
    if not report.days:
        return '<p class="soft">Nothing yet.</p>'
    return f'<p class="soft">Share of the marks, by day.</p>{pictures.history(report.days)}'


def _calibration(report: Report) -> str:
    parts = []
    if report.bins:
        words = "Right answers against how sure you said you were. Below the line: too sure."
        parts.append(f'<p class="soft">{words}</p>')
        parts.append(pictures.confidence(report.bins))
    if report.predictions:
        near = sum(is_near(r) for r in report.predictions.values())
        parts.append(
            f"<p>{near} of {len(report.predictions)} lodged predictions of the lessons lie within "
            "a quarter of what was computed.</p>"
        )
        parts.append(pictures.predictions(report.predictions))
    if not parts:
        return (
            '<p class="soft">No predictions lodged in the lessons, and no answer with how sure you '
            "were: a drill asks for it before each verdict.</p>"
        )
    return "".join(parts)
