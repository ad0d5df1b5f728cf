"""Which test files take long: they begin first, so that no core waits at the end; none is quick.

What is not here takes four seconds or less. Seconds are rough, of one core: only order matters.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SECONDS = {
    "tests/lessons/test_matrices.py": 180,
    "tests/browser/test_lessons.py": 150,
    "tests/grader/classroom/test_nbgrader_loop.py": 100,
    "tests/browser/test_site.py": 100,
    "tests/grader/judging/isolated/test_follow_through.py": 90,
    "tests/grader/classroom/test_classroom.py": 80,
    "tests/project/test_instructor_guide.py": 80,
    "tests/inferlab/test_model.py": 70,
    "tests/browser/test_lesson_04.py": 69,
    "tests/lessons/test_all_lessons.py": 60,
    "tests/browser/test_explorer_page.py": 60,
    "tests/grader/judging/test_alone.py": 60,
    "tests/browser/test_looks.py": 59,
    "tests/browser/test_formgrader_pages.py": 50,
    "tests/grader/judging/test_diagnosis.py": 50,
    "tests/project/test_wheel.py": 50,
    "tests/grader/judging/isolated/test_any_object.py": 45,
    "tests/grader/classroom/test_guard.py": 45,
    "tests/grader/judging/isolated/test_honest.py": 40,
    "tests/grader/judging/isolated/test_wrong.py": 40,
    "tests/grader/judging/isolated/test_habits.py": 40,
    "tests/grader/judging/isolated/test_own_classes.py": 40,
    "tests/project/test_site.py": 39,
    "tests/grader/classroom/test_hidden_cases.py": 35,
    "tests/grader/learner/test_earlier_release.py": 32,
    "tests/project/test_tiny_models.py": 30,
    "tests/grader/classroom/test_intake_properties.py": 30,
    "tests/grader/classroom/test_intake_nbgrader.py": 30,
    "tests/grader/classroom/test_troubles.py": 30,
    "tests/inferlab/engines/test_pytorch.py": 25,
    "tests/inferlab/test_prompt_lookup.py": 24,
    "tests/browser/test_interview.py": 23,
    "tests/lessons/test_speculative_sampling.py": 20,
    "tests/grader/judging/isolated/test_hostile.py": 19,
    "tests/grader/learner/test_assemble.py": 18,
    "tests/inferlab/engines/test_fast_numpy.py": 17,
    "tests/grader/test_cli.py": 16,
    "tests/browser/test_serve.py": 15,
    "tests/browser/test_report.py": 14,
    "tests/grader/judging/isolated/test_reference.py": 13,
    "tests/sandbox/test_walls.py": 12,
    "tests/project/test_bench_harness.py": 12,
    "tests/grader/classroom/test_private.py": 12,
    "tests/project/test_open_project.py": 12,
    "tests/inferlab/engines/test_fast_numpy_gguf.py": 11,
    "tests/inferlab/serve/test_app.py": 10,
    "tests/grader/classroom/test_whose.py": 10,
    "tests/labkit/figures/test_kv_cache.py": 9,
    "tests/labkit/figures/test_kv_cache_pictures.py": 8,
    "tests/lessons/test_quantization.py": 8,
    "tests/grader/safe_pages/test_safe_pages.py": 8,
    "tests/grader/notebooks/test_build.py": 8,
    "tests/labkit/figures/test_roofline.py": 6,
    "tests/labkit/explorer/test_pictures.py": 6,
    "tests/labkit/explorer/test_widget.py": 6,
    "tests/grader/learner/test_progress.py": 6,
    "tests/inferlab/serve/test_engine.py": 6,
    "tests/labkit/interview/test_terminal.py": 6,
    "tests/inferlab/serve/test_load_client.py": 5,
    "tests/inferlab/serve/test_openai_client.py": 5,
}
# Of those, what is quick all the same: exercises are whole and their references pass; notebooks
# are what a build gives.
QUICK = (
    "tests/lessons/test_matrices.py::test_the_reference_",
    "tests/lessons/test_matrices.py::test_an_exercise_is_complete",
    "tests/lessons/test_matrices.py::test_a_stub_",
    "tests/grader/notebooks/test_build.py",
)
# Files that share what they make, under the name of one of them: they go to one worker.
TOGETHER = {"tests/project/test_site.py": "tests/browser/test_site.py"}
ALONE = "tests/lessons/test_all_lessons.py::test_the_solution_notebook_"


def is_quick(item: pytest.Item) -> bool:
    """Whether a test runs while one works: `make test ARGS="-m quick"`."""
    if any(item.get_closest_marker(needs) for needs in ("browser", "model")):
        return False
    return item.nodeid.startswith(QUICK) or item.nodeid.partition("::")[0] not in SECONDS


class LongestFirst(LoadFileScheduling):
    """A file's tests go to one worker, longest files first; each worked lesson goes by itself."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if nodeid.startswith(ALONE) else TOGETHER.get(file, file)

    def _assign_work_unit(self, node: WorkerController) -> None:
        def seconds(scope: str) -> int:
            return 30 if scope.startswith(ALONE) else SECONDS.get(scope, 0)

        self.workqueue.move_to_end(max(self.workqueue, key=seconds), last=False)
        super()._assign_work_unit(node)
