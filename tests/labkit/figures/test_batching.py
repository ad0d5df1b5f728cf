"""The figures and measurements of lesson 10 show the right numbers, in words too, and readably."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from figure_words import require_apart, require_readable, words_of
from matplotlib.patches import Rectangle

from inferlab.batching import Job, continuous_starts, decode_speeds, seat_use, static_starts
from inferlab.config import ModelConfig
from inferlab.data import model_preset
from inferlab.generate import generate_uncached
from inferlab.model import Model, load_model
from inferlab.paging import PagePool
from inferlab.prefix_cache import page_hashes
from inferlab.scheduler import Request, Scheduler
from inferlab.serve.engine import StepRecord
from inferlab.weights import random_weights
from labkit.figures import batching as figures
from labkit.figures import batching_pictures as pictures
from labkit.measure import batching as measure

JOBS = [Job(0, 10), Job(0, 2), Job(0, 3), Job(1, 4), Job(2, 2), Job(3, 8), Job(5, 1)]
TABLES, COUNTS = [[7, 2, 5], [7, 2, 0, 9], [7, 2, 4]], [1, 0, 3, 0, 1, 1, 0, 3, 0, 1, 0, 0]
A = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
PROMPTS = [A, [*A[:4], 7, *A[5:]], [1, *A[1:]]]
STEPS = [[("a", 5, False), ("b", 3, False)], [("a", 1, True), ("b", 3, False)], [("a", 1, True)]]
BATCHES = [2**i for i in range(12)]
RECORDS = [
    StepRecord(0, 2, 2, 0, 5 + i % 3, n_preempted=int(i == 9), n_pages_kept=1, n_empty_slots=8)
    for i in range(60)
]


def _curve():
    llama = model_preset("llama-3-8b")
    rates = (3.35e12, 9.894e14)
    speeds = {T: [decode_speeds(llama, T, b, *rates) for b in BATCHES] for T in (200, 8192)}
    return figures.batch_curve_figure(
        BATCHES, speeds, {200: 2439, 8192: 59}, {200: 602, 8192: None}
    )


EXAMPLES = {
    "seat_timeline": lambda: pictures.seat_timeline_figure(
        JOBS, 3, static_starts(JOBS, 3), continuous_starts(JOBS, 3, 1)
    ),
    "page_tables": lambda: pictures.page_tables_figure(TABLES, COUNTS, 16),
    "hash_chain": lambda: pictures.hash_chain_figure(
        PROMPTS, [page_hashes(p, 4) for p in PROMPTS], 4
    ),
    "budget_steps": lambda: pictures.budget_steps_figure(STEPS, 8),
    "batch_curve": _curve,
    "batch_speeds": lambda: figures.batch_speeds_figure(
        [1, 4, 16], [17.6, 25.9, 71.9], [40.9, 163, 345], "cpu float32: some chip, 2 cores"
    ),
    "run_over_time": lambda: figures.run_over_time_figure(RECORDS, 8, 24, 16, [8] * 5 + [1] * 90),
}


words = words_of(EXAMPLES)


def test_type_is_readable_and_nothing_is_clipped(words):
    require_readable(words, alt_above=100)


def test_no_words_overlap(words):
    require_apart(words.texts)


# ---- what is drawn ------------------------------------------------------------------------------


def test_the_seats_are_those_of_the_starts():
    figure, alt = EXAMPLES["seat_timeline"]()
    for plot, starts in zip(
        figure.axes, (static_starts(JOBS, 3), continuous_starts(JOBS, 3, 1)), strict=True
    ):
        bars = [p for p in plot.patches if isinstance(p, Rectangle) and not p.get_hatch()]
        drawn = sorted((p.get_x(), p.get_width()) for p in bars)
        assert drawn == sorted((s, j.n_steps) for s, j in zip(starts, JOBS, strict=True))
        for one, other in itertools.combinations(bars, 2):  # nobody sits on another's lap
            same_seat = one.get_y() == other.get_y()
            apart = one.get_x() >= other.get_x() + other.get_width() or (
                other.get_x() >= one.get_x() + one.get_width()
            )
            assert not same_seat or apart
        assert f"{seat_use(JOBS, starts, 3):.0%}" in plot.get_title(loc="left")
    assert "19 steps" in alt
    assert "13 steps" in alt


def test_the_pages_show_their_holders():
    figure, alt = EXAMPLES["page_tables"]()
    boxes = [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    assert len(boxes) == sum(map(len, TABLES)) + len(COUNTS)
    assert sum(bool(p.get_hatch()) for p in boxes) == 6 + 2  # shared: in tables, among the pages
    assert "page 2 3, page 7 3" in alt
    assert "6 are free" in alt
    labels = [t.get_text() for t in figure.axes[0].texts]
    assert labels.count("7") == 3
    assert "7\nheld 3×" in labels


def test_equal_names_are_marked_and_only_those():
    figure, alt = EXAMPLES["hash_chain"]()
    boxes = [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    assert [bool(p.get_hatch()) for p in boxes] == [True, False, False, True] + [False] * 5
    texts = [t.get_text() for t in figure.axes[0].texts]
    names = page_hashes(A, 4)
    assert sum(names[0].hex()[:6] in text for text in texts) == 2
    assert sum("5 3 5 8" in text for text in texts) == 3
    assert "more than once: 1;" in alt


def test_the_bars_of_the_steps_are_the_tokens_planned():
    figure, alt = EXAMPLES["budget_steps"]()
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [n for step in STEPS for _, n, _ in step]
    assert figure.axes[0].lines[0].get_ydata()[0] == 8
    assert "step 1: a 1, b 3" in alt


def test_the_curve_is_solid_as_far_as_memory_goes():
    figure, alt = _curve()
    totals = figure.axes[0]
    solid = [
        line for line in totals.lines if line.get_alpha() is None and len(line.get_xdata()) > 1
    ]
    assert [max(line.get_xdata()) for line in solid] == [2048, 59]
    marks = {line.get_marker(): line.get_xdata()[0] for line in totals.lines
             if len(line.get_xdata()) == 1}  # fmt: skip
    assert marks == {"^": 602, "X": 59}
    assert "never compute-bound" in alt
    llama = model_preset("llama-3-8b")
    one, total = decode_speeds(llama, 8192, 16, 3.35e12, 9.894e14)
    at_16 = list(solid[1].get_xdata()).index(16)
    assert solid[1].get_ydata()[at_16] == pytest.approx(total)
    right = [
        line for line in figure.axes[1].lines if len(line.get_xdata()) == len(solid[1].get_xdata())
    ]
    assert any(line.get_ydata()[at_16] == pytest.approx(one) for line in right)


def test_the_measured_bars_and_their_bounds():
    figure, alt = EXAMPLES["batch_speeds"]()
    assert [bar.get_height() for bar in figure.axes[0].patches] == [17.6, 25.9, 71.9]
    assert [line.get_ydata()[0] for line in figure.axes[0].lines] == [40.9, 163, 345]
    assert "batch 16: 72 tokens/s measured, bound 345" in alt


def test_the_run_shows_seats_pages_and_waste():
    figure, alt = EXAMPLES["run_over_time"]()
    seats, _, waste = figure.axes
    assert list(seats.lines[1].get_ydata()) == [2] * 60
    assert len(seats.lines[0].get_ydata()) == 95
    assert waste.lines[0].get_ydata()[0] == pytest.approx(100 * 8 / (16 * 4))
    assert "preemptions: 1" in alt


REFUSED = {
    "too many jobs": lambda: pictures.seat_timeline_figure([Job(0, 1)] * 13, 3, [0] * 13, [0] * 13),
    "too many tables": lambda: pictures.page_tables_figure([[0]] * 5, [5, 0, 0, 0], 16),
    "one prompt": lambda: pictures.hash_chain_figure([A], [page_hashes(A, 4)], 4),
    "no steps": lambda: pictures.budget_steps_figure([], 8),
    "series of unequal length": lambda: figures.batch_speeds_figure([1, 4], [1], [2, 3], "x"),
    "a curve that is too short": lambda: figures.batch_curve_figure([1, 2], {9: [(1, 1)]}, {}, {}),
    "one step": lambda: figures.run_over_time_figure(RECORDS[:1], 8, 24, 16, [1]),
}


@pytest.mark.parametrize("draw", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_drawn_is_refused(draw):
    with pytest.raises(ValueError, match=r"\d"):
        draw()


# ---- what is measured ---------------------------------------------------------------------------

CONFIG = ModelConfig(2, 32, 4, 2, 8, 48, 67, 512)


def small_engine(**sizes):
    model = Model(CONFIG, random_weights(CONFIG, np.random.default_rng(0), np.float64))
    return measure.engine_with(model, **sizes)


def ticking(step=1.0):
    """A clock that goes on by `step` at every look."""
    ticks = itertools.count()
    return lambda: next(ticks) * step


def test_the_rate_is_tokens_of_all_over_the_time_of_a_step():
    engine = small_engine(max_running=4)
    assert measure.decode_rate(engine, [[1, 2, 3]] * 3, 6, ticking(0.5)) == 3 / 0.5
    decoding = [r for r in engine.records if not r.n_prefill_tokens]
    assert {r.n_decode_tokens for r in decoding} == {3}
    with pytest.raises(ValueError, match="never decoded together"):
        measure.decode_rate(small_engine(), [[1, 2]], 1, ticking())


def test_first_tokens_and_what_was_cached():
    engine = small_engine(page_size=4)
    assert measure.time_to_first_token(engine, "a", [1] * 9, ticking()) == (1.0, 0)
    assert measure.time_to_first_token(engine, "b", [1] * 9, ticking())[1] == 8


def test_chunks_bound_the_wait_of_who_decodes():
    class Counted:
        """Time passes with the tokens that are computed."""

        def __init__(self, engine):
            self.engine = engine

        def __call__(self):
            return float(sum(r.n_prefill_tokens + r.n_decode_tokens for r in self.engine.records))

    gaps = {}
    for budget in (16, 64):
        engine = small_engine(token_budget=budget, use_prefix_cache=False)
        gaps[budget] = measure.longest_gap(engine, [1, 2], [3] * 60, Counted(engine))
    assert gaps[16] == (16, 64)  # 15 tokens a step beside the one who decodes, in four steps
    assert gaps[64] == (61, 61)


def test_a_trace_is_served_and_each_step_is_recorded():
    engine = small_engine(n_pages=40, max_running=4, token_budget=16)
    trace = measure.random_trace(engine.model, 12, mean_gap=6, mean_new=4, seed=1)
    records = measure.run_trace(engine, trace)
    assert engine.is_idle
    assert sum(r.n_decode_tokens for r in records) + len(trace) == sum(a.n_new for a in trace)
    assert len(records) > len(engine.records)  # some steps had nobody
    assert max(r.n_running for r in records) <= 4
    assert all(0 <= r.n_empty_slots <= 16 * r.n_pages_used for r in records)
    jobs = measure.jobs_of(trace)
    busy = measure.seats_busy(jobs, static_starts(jobs, 4))
    assert sum(busy) == sum(a.n_new for a in trace)
    assert max(busy) <= 4


def test_records_say_which_slots_are_empty_and_which_pages_are_kept():
    engine = small_engine(page_size=4)
    engine.add("a", [1] * 9, 2)
    engine.step()
    assert (engine.records[0].n_pages_used, engine.records[0].n_empty_slots) == (3, 3)
    engine.step()
    assert engine.records[1].n_empty_slots == 2
    engine.add("b", [2], 1)
    engine.step()
    assert (engine.records[2].n_pages_kept, engine.records[2].n_pages_used) == (2, 3)


def test_play_steps_gives_what_is_planned_and_stops_in_the_end():
    pool = PagePool(CONFIG, 24, page_size=4)
    scheduler = Scheduler(pool, token_budget=8, max_running=2)
    steps = measure.play_steps(
        scheduler, [(0, Request("a", [1] * 9, 2)), (1, Request("b", [2], 1))]
    )
    assert steps == [[("a", 8, False)], [("a", 1, False), ("b", 1, False)], [("a", 1, True)]]
    stuck = type("Stuck", (Scheduler,), {"plan": lambda self: []})(pool, 8, 2)
    with pytest.raises(ValueError, match="500 steps"):
        measure.play_steps(stuck, [(0, Request("a", [1], 2))])


def test_the_simulated_gain_nears_the_harmonic_number():
    assert measure.simulated_gain(4, 2000, seed=3) == pytest.approx(
        1 + 1 / 2 + 1 / 3 + 1 / 4, rel=0.05
    )


def test_the_engine_of_a_notebook_serves_the_shipped_model():
    """A scheduler of another class is used, and the tokens are those of each prompt alone."""
    mine = type("Scheduler", (Scheduler,), {})
    tiny = load_model("tiny-target")
    engine = measure.engine_with(tiny, mine, n_pages=24, page_size=4, max_running=4)
    assert isinstance(engine.scheduler, mine)
    prompts = [tiny.tokenizer.encode(text) for text in ("To be, or not to be", "Now is the winter")]
    served = [engine.add(str(i), prompt, 12) for i, prompt in enumerate(prompts)]
    list(engine.run())
    assert [r.generated for r in served] == [generate_uncached(tiny, p, 12) for p in prompts]


def test_torch_decodes_a_batch():
    tiny = load_model("tiny-target")
    assert measure.torch_decode_rate(tiny, 2, "cpu", n_steps=3) > 0
