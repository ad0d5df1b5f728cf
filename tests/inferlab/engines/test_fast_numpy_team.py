"""A decode step shared out among processes is the same step, whatever becomes of the others."""

import os
import signal
import time

import numpy as np
import pytest
from drawn_models import TINY, tiny_model

from inferlab.engines.fast_numpy import team
from inferlab.engines.fast_numpy.model import FastModel
from inferlab.engines.fast_numpy.step import FastStep, Turns
from inferlab.engines.fast_numpy.team import Product, Team, TeamLost, shared_rows

here = pytest.mark.skipif(
    not team.possible(), reason="NOT TESTED: a team of processes needs Linux on x86-64"
)


def products(*shapes: tuple[int, int, str]) -> list[Product]:
    """Products of random rows with random matrices, in C or F order."""
    rng = np.random.default_rng(0)
    made = []
    for d_in, d_out, order in shapes:
        x, out = shared_rows(d_in, d_out)
        x[:] = rng.standard_normal(d_in)
        w = rng.standard_normal((d_in, d_out)).astype(np.float32)
        made.append(Product(x, np.asarray(w, order=order), out))
    return made


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@here
@pytest.mark.parametrize("n_members", [2, 3])
def test_products_of_a_team_are_the_products(n_members):
    shared = products((64, 960, "C"), (7, 5, "C"), (513, 33, "F"), (2, 1, "C"), (1536, 576, "F"))
    joint = Team(shared, n_members)
    for step in range(5):
        with joint.step() as run:
            for product, multiply in zip(shared, run, strict=True):
                product.x[:] += step
                product.out[:] = np.nan
                multiply()
                expected = product.x.astype(np.float64) @ product.w
                np.testing.assert_allclose(product.out, expected, rtol=0, atol=2e-2)
    joint.close()


@here
def test_a_team_needs_two():
    with pytest.raises(ValueError, match="n_members=1 must be at least 2"):
        Team(products((4, 4, "C")), 1)


@here
def test_members_end_with_the_team():
    joint = Team(products((4, 4, "C")), 3)
    pids = joint.pids
    assert len(pids) == 2
    assert all(map(alive, pids))
    joint.close()
    assert not any(map(alive, pids))


@here
def test_members_end_when_their_parent_is_killed(tmp_path):
    child = os.fork()
    if not child:
        joint = Team(products((4, 4, "C")), 2)
        (tmp_path / "new").write_text(str(joint.pids[0]))
        (tmp_path / "new").rename(tmp_path / "pid")
        with joint.step():  # the member spins: no product is ever called
            time.sleep(60)
        os._exit(1)
    until(lambda: (tmp_path / "pid").exists())
    member = int((tmp_path / "pid").read_text())
    assert alive(member)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until(lambda: not alive(member))


def until(happened, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


def model_with_team(kind: str = "gqa", n_members: int = 2) -> tuple[FastModel, FastModel]:
    """A model whose every step is a team's, and the same one alone."""
    model = tiny_model(kind)
    joint, alone = FastModel.of(model), FastModel.of(model)
    joint._step = FastStep(joint.config, joint.layers, joint.head, n_members)
    joint._step._turns.together = lambda: True
    return joint, alone


def assert_same_text(joint: FastModel, alone: FastModel, n: int = 12) -> None:
    ours, theirs = joint.new_cache(), alone.new_cache()
    for token in range(n):
        got = joint.next_logits([token], ours)
        np.testing.assert_allclose(got, alone.next_logits([token], theirs), rtol=0, atol=1e-5)


@here
@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("n_members", [2, 3])
def test_logits_of_a_team_are_those_of_one_process(kind, n_members):
    joint, alone = model_with_team(kind, n_members)
    assert_same_text(joint, alone)
    assert len(joint._step._team.pids) == n_members - 1


@here
@pytest.mark.parametrize("busy", [False, True])
def test_a_member_that_dies_costs_a_warning_and_no_token(busy):
    joint, alone = model_with_team()
    assert_same_text(joint, alone)
    (pid,) = joint._step._team.pids
    if busy:  # it dies within a step: stopped now, killed while the parent waits
        os.kill(pid, signal.SIGSTOP)
        if not os.fork():
            time.sleep(0.3)
            os.kill(pid, signal.SIGKILL)
            os._exit(0)
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.warns(UserWarning, match="decoding goes on in one process"):
        assert_same_text(joint, alone)
    assert joint._step.n_members == 1
    assert_same_text(joint, alone)


@here
def test_no_process_to_be_had_costs_a_warning_and_no_token(monkeypatch):
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    joint, alone = model_with_team()
    monkeypatch.setattr(os, "fork", refused)
    with pytest.warns(UserWarning, match="Resource temporarily unavailable"):
        assert_same_text(joint, alone)


@here
def test_after_an_interrupt_a_new_team_goes_on():
    joint, alone = model_with_team()
    assert_same_text(joint, alone)
    pids, cache = joint._step._team.pids, joint.new_cache()
    exact = joint._step._attention

    def interrupted(_):
        def attend(i):
            raise KeyboardInterrupt

        return attend

    joint._step._attention = interrupted
    with pytest.raises(KeyboardInterrupt):
        joint.next_logits([3], cache)
    assert not any(map(alive, pids))
    joint._step._attention = exact
    assert cache.n_tokens == 0
    assert_same_text(joint, alone)


@here
def test_a_step_on_a_lost_team_says_so():
    joint = Team(products((4, 4, "C")), 2)
    (pid,) = joint.pids
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(TeamLost, match=f"process {pid} is gone"), joint.step():
        pass


def test_the_faster_of_team_and_one_process_has_the_next_step():
    turns = Turns()

    def steps(n: int, alone_s: float, together_s: float) -> str:
        marks = ""
        for _ in range(n):
            together = turns.together()
            marks += "t" if together else "a"
            turns.note(together, together_s if together else alone_s)
        return marks

    assert steps(6, 2, 1) == "attttt"
    assert steps(1, 2, 50) + steps(3, 2, 1) == "tttt"  # one slow step is forgiven
    assert steps(30, 2, 50) == "tt" + 8 * "a" + "tt" + 16 * "a" + "tt"
    assert steps(40, 2, 1) == 32 * "a" + 8 * "t"
    assert steps(11, 2, 50) == "tt" + 8 * "a" + "t"  # it begins with few again


def test_small_models_and_one_thread_need_no_team():
    assert FastModel.of(tiny_model())._step.n_members == 1
    with team.one_blas_thread():
        assert team.members_here() == 1
