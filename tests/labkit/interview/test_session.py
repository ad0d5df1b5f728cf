"""Sessions: simulated candidates, what is chosen, mock interviews, the notebook."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from interview_candidate import Candidate, Time, sit, sit_at_panel, whole_bank

from grader.judging import registry
from labkit.interview import choose, mock, terminal
from labkit.interview.history import History
from labkit.interview.notebook import panel
from labkit.interview.session import Session, plan
from labkit.interview.summary import report

BANK = whole_bank()
NO_OPEN = [item for item in BANK.items.values() if item.kind != "open"]


@pytest.fixture
def history() -> History:
    return History.in_memory()


def _report(history: History, time: Time):
    return report(history.answers(), history.cards(), BANK, time.date, history.n_skipped())


# ---- simulated candidates ----------------------------------------------------------------------


@pytest.mark.parametrize("believed", [("M53", "M90"), ("M78", "M31"), ("M60", "M144")])
def test_who_knows_all_but_two_things_is_told_exactly_these_two(history, believed):
    time = Time()
    sit(Candidate(frozenset(believed)), BANK, history, list(BANK.items.values()), time)
    found = _report(history, time)
    assert {met.what.id for met in found.met} == set(believed)
    assert not any(met.cured for met in found.met)
    can_show = sum(bool(set(believed) & set(i.met_by.values())) for i in BANK.items.values())
    assert sum(met.times for met in found.met) == can_show
    assert found.n_answers == len(BANK.items)
    assert found.share > 0.85


def test_a_misconception_is_cured_by_right_answers_where_it_could_have_shown(history):
    time = Time()
    items = [i for i in BANK.items.values() if "M53" in i.met_by.values() and i.kind == "numeric"]
    sit(Candidate(frozenset({"M53"})), BANK, history, items[:1], time)
    other = [i for i in BANK.items.values() if i.topic == "08_speculative_sampling"][:4]
    sit(Candidate(), BANK, history, other, time)
    assert not _report(history, time).met[0].cured
    sit(Candidate(), BANK, history, items[1:4], time)
    (met,) = _report(history, time).met
    assert met.cured
    assert met.right_since == 3


def test_who_guesses_among_choices_scores_at_chance(history):
    time, rng = Time(), np.random.default_rng(5)
    items = [item for item in NO_OPEN if item.kind == "choice"]
    for seed in range(6):
        sit(Candidate(guesses=rng), BANK, history, items, time, seed)
    answers = history.answers()
    chance = [1 / len(BANK.items[a.item].question.choices) for a in answers]
    spread = 5 * np.sqrt(sum(p * (1 - p) for p in chance))
    assert abs(sum(a.score for a in answers) - sum(chance)) < spread
    verdicts = {score.verdict for score in _report(history, time).topics}
    assert verdicts == {"to work on"}


def test_who_is_right_but_slow_is_told_so_and_asked_again_sooner():
    due = {}
    for pace in (0.4, 0.8, 2.0):
        history, time = History.in_memory(), Time()
        sit(Candidate(pace=pace), BANK, history, NO_OPEN[:40], time)
        sit(Candidate(pace=pace), BANK, history, NO_OPEN[:40], time)
        cards = history.cards()
        due[pace] = sum((c.due - c.last_review for c in cards.values()), timedelta()) / len(cards)
        topics = _report(history, time).topics
        assert all(score.share == 1 for score in topics)
        assert {t.verdict for t in topics if t.n >= 3} == (
            {"right, but slow"} if pace == 2 else {"strong"}
        )
    assert due[0.4] > due[0.8] > due[2.0]


def test_half_marks_for_a_known_slip_none_for_nonsense(history):
    time = Time()
    item = BANK.items["iv-kv-token"]
    (slip,) = sit(Candidate(frozenset({"M53"})), BANK, history, [item], time)
    assert slip.result.score == 0.5
    assert "half a mark" in slip.lines()[0]
    session = Session(BANK, history, [item], 1, clocks=time.clocks())
    session.drill.next_question()
    assert session.drill.answer("17 B").result.score == 0
    assert [a.score for a in history.answers()] == [0.5, 0.0]
    assert [a.rating for a in history.answers()] == [1, 1]


def test_gb_for_gib_is_half_right_and_has_a_name(history):
    session = Session(BANK, history, [BANK.items["iv-kv-sequence"]], 3, clocks=Time().clocks())
    asked = session.drill.next_question()
    gib = asked.question.answer(asked.answers.params(asked.question.id)) / 2**30
    feedback = session.drill.answer(f"{gib:g} GB")
    assert feedback.result.score == 0.5
    assert [m.id for m in history.answers()[0].met] == ["UNITS"]


# ---- what is asked -----------------------------------------------------------------------------


def test_due_questions_come_first_the_longest_due_before_others(history):
    time = Time()
    late, later, fresh = NO_OPEN[0], NO_OPEN[1], NO_OPEN[2]
    sit(Candidate(), BANK, history, [later], time)
    sit(Candidate(frozenset(late.met_by.values())), BANK, history, [late], time)
    cards = history.cards()
    rng = np.random.default_rng(0)
    now = time.date + timedelta(days=400)
    both = choose.due_first([fresh, later, late], cards, now, rng)
    assert [i.id for i in both] == [*sorted(cards, key=lambda n: cards[n].due), fresh.id]
    now = min(card.due for card in cards.values())
    order = [i.id for i in choose.due_first([fresh, later, late], cards, now, rng)]
    assert order == [late.id, fresh.id, later.id]  # due, never asked, not due yet


def test_new_questions_take_topics_in_turn(history):
    items = plan(BANK, history, n=24, seed=4)
    assert {i.topic for i in items[:12]} == set(BANK.topics)
    assert {i.topic for i in items[12:]} == set(BANK.topics)


def test_a_seed_gives_the_same_plan_and_another_one_another(history):
    plans = [[i.id for i in plan(BANK, history, seed=seed)] for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_topic_and_level_narrow_the_choice(history):
    items = plan(BANK, history, topics=["kv-cache", "05"], level="senior", n=50)
    assert {i.topic for i in items} == {"04_kv_cache", "05_gqa"}
    assert {i.level for i in items} == {"senior"}


@pytest.mark.parametrize(
    ("choice", "trouble"),
    [
        ({"n": 0}, "n=0 must be at least 1"),
        ({"level": "guru"}, "there are: screen, engineer, senior, design"),
        ({"topics": ["tea"]}, "no topic 'tea'"),
        ({"topics": ["roofline"], "level": "design"}, "no question of level design"),
    ],
)
def test_a_choice_that_leaves_nothing_is_refused(history, choice, trouble):
    with pytest.raises(ValueError, match=trouble):
        plan(BANK, history, **choice)


def test_weak_asks_for_what_went_wrong_and_for_the_same_misconception_elsewhere(history):
    time = Time()
    sit(Candidate(), BANK, history, [i for i in NO_OPEN if "M53" not in i.met_by.values()], time)
    shows = [i for i in NO_OPEN if "M53" in i.met_by.values()]
    sit(Candidate(frozenset({"M53"})), BANK, history, shows[:3], time)
    items = plan(BANK, history, weak=True, n=len(shows), seed=1)
    kinds = {item.kind for item in items}
    weak = [i for i in items if "M53" in i.met_by.values()]
    assert len(weak) >= len(shows) / 2
    assert kinds  # open ones, never asked, may be among them


# ---- mock interviews ---------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [30, 45])
@pytest.mark.parametrize("scenario", sorted(BANK.scenarios))
def test_a_mock_interview_ends_in_a_system_design_with_its_follow_ups(history, minutes, scenario):
    plan = mock.plan(BANK, history, minutes, 3, scenario)
    case = BANK.scenarios[scenario]
    assert [head for head, _ in plan.parts][:2] == ["Screen questions", "Engineer questions"]
    head, design = plan.parts[-1]
    assert head == f"System design: {case.title}"
    assert [i.id for i in design] == [case.opening.id, *(i.id for i in case.follow_ups)]
    before = plan.items[: -len(design)]
    assert len({i.id for i in plan.items}) == len(plan.items)
    assert not any(i.scenario for i in before)
    assert plan.heading(design[0].id) == head
    assert plan.heading(design[1].id) == ""
    session = Session(BANK, history, plan.items, 3, float(minutes), "mock", Time().clocks())
    asked = [session.drill.next_question() for _ in plan.items]
    assert [a.question.id for a in asked] == [i.id for i in plan.items]


def test_a_slow_candidate_still_comes_to_the_design(history):
    time = Time()
    plan = mock.plan(BANK, history, 30, 1)
    session = Session(BANK, history, plan.items, 1, 30.0, "mock", time.clocks())
    asked = terminal._next(session, plan)
    time.pass_by(20 * 60)
    assert asked.question.id == plan.items[0].id
    assert terminal._next(session, plan).question.id == plan.parts[-1][1][0].id


def test_another_length_or_scenario_is_refused(history):
    with pytest.raises(ValueError, match="30 or 45 minutes, given 10"):
        mock.plan(BANK, history, 10, 0)
    with pytest.raises(ValueError, match="no scenario 'x'; there are: chat-70b"):
        mock.plan(BANK, history, 30, 0, "x")


# ---- in a notebook -----------------------------------------------------------------------------


def _shown(p) -> set[str]:
    names = ("start_button", "answer_button", "next_button", "end_button", "field", "letters")
    names += ("notes", "reveal_button", "marks", "pause_button")
    return {name for name in names if getattr(p, name).layout.display != "none"}


def test_the_panel_asks_numbers_choices_and_open_questions(history):
    p = panel(registry.questions(), history, topic="kv-cache", n=99, seed=1)
    p.start_button.click()
    kinds = set()
    while not p.finished:
        item = p.session.item(p.drill.asked)
        kinds.add(item.kind)
        text = p.question.outputs[0]["data"]["text/markdown"]
        assert "04 KV cache" in text
        if item.kind == "open":
            assert {"notes", "reveal_button"} <= _shown(p)
            assert "answer_button" not in _shown(p)
            p.notes.value = "first line\nsecond"
            p.reveal_button.click()
            assert {"notes", "marks", "answer_button"} <= _shown(p)
            p.answer_button.click()
            assert "try again" in p.feedback.value
            for row in p.marks.children:
                row.children[1].value = "½"
        else:
            entry = p.letters if p.drill.asked.choices else p.field
            entry.value = p.drill.asked.answers.worked(item.id)
        p.answer_button.click()
        assert "try again" not in p.feedback.value
        p.next_button.click()
    assert kinds == {"numeric", "choice", "open"}
    kept = history.answers()
    assert len(kept) == sum(item.topic == "04_kv_cache" for item in BANK.items.values())
    assert all(a.score == (0.5 if a.kind == "open" else 1) for a in kept)
    assert any(a.given == "first line\nsecond\n½ ½ ½" for a in kept)
    assert "The drill: ended" in p.feedback.value
    assert _shown(p) == set()


def test_the_panels_pause_stops_the_clock_and_hides_the_question(history):
    p = panel(registry.questions(), history, minutes=5, seed=1)
    time = Time()
    p.session.clocks.seconds = lambda: time.seconds
    p.start_button.click()
    time.pass_by(10)
    p.pause_button.click()
    assert p.question.layout.display == "none"
    assert p.pause_button.description == "go on"
    time.pass_by(1000)
    assert p.drill.remaining() == 290
    assert _shown(p) == {"pause_button"}
    p.pause_button.click()
    assert p.question.layout.display is None
    assert {"answer_button", "next_button", "end_button", "pause_button"} < _shown(p)
    time.pass_by(10)
    assert p.drill.remaining() == 280


def test_a_mock_interview_in_the_panel_has_its_headings(history):
    p = panel(registry.questions(), history, mock=30, scenario="agent", seed=2)
    p.start_button.click()
    seen = []
    while not p.finished:
        seen.append(p.question.outputs[0]["data"]["text/markdown"])
        p.next_button.click()
    assert seen[0].startswith("**Screen questions**")
    assert sum("**System design: an agent" in text for text in seen) == 1
    assert "skipped" in p.feedback.value


def test_the_panel_says_what_is_asked_and_ends_with_the_marks_of_each_part(history):
    p = panel(registry.questions(), history, mock=30, scenario="agent", seed=2)
    assert (
        "A mock interview of 30 minutes, by seed 2." in p.question.outputs[0]["data"]["text/plain"]
    )
    sit_at_panel(Candidate(), p)
    n_parts = [len(items) for _, items in p.mock.parts]
    assert f"{sum(n_parts)}.0 of {sum(n_parts)} marks" in p.feedback.value
    assert f"<li>Screen questions: {n_parts[0]}.0 of {n_parts[0]}, " in p.feedback.value
    assert "could not be kept</b>: it was in memory only." in p.feedback.value


@pytest.mark.parametrize(
    ("choice", "trouble"),
    [
        ({"scenario": "rag"}, "a scenario belongs to a mock interview"),
        ({"mock": 30, "topic": "04"}, "leave out topic, level, weak and minutes"),
        ({"mock": 45, "weak": True}, "leave out topic, level, weak and minutes"),
        ({"mock": 20}, "30 or 45"),
    ],
)
def test_a_choice_that_would_be_passed_over_is_refused(history, choice, trouble):
    with pytest.raises(ValueError, match=trouble):
        panel(registry.questions(), history, **choice)


def test_list_and_report_are_there_in_a_notebook_too(tmp_path, monkeypatch, capsys):
    from grader import interview

    for name in ("NBGRADER_EXECUTION", "INFERLAB_CHECK_ONLY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("INFERLAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    interview(list=True)
    said = capsys.readouterr().out
    assert "04 KV cache" in said
    assert all(name in said for name in BANK.scenarios)
    kept = History.open()
    sit(Candidate(sure="90"), BANK, kept, NO_OPEN[:3], Time())
    kept.close()
    interview(report="my page.html")
    assert "my page.html" in capsys.readouterr().out
    text = (tmp_path / "my page.html").read_text(encoding="utf-8")
    assert "3</b>answers" in text
    assert "said 90%, right 100% of 3" in text


def test_outside_a_kernel_and_while_grading_it_says_how(monkeypatch, capsys):
    from grader import interview

    for name in ("NBGRADER_EXECUTION", "INFERLAB_CHECK_ONLY"):
        monkeypatch.delenv(name, raising=False)
    interview(topic="kv-cache")
    assert "in a terminal it is inferlab drill" in capsys.readouterr().out
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    interview(topic="kv-cache")
    assert "skipped while grading" in capsys.readouterr().out
