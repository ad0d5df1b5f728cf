"""The command `inferlab`. Each verb imports what it needs only when it runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from inferlab.engines.options import add_arguments as engine_options
from inferlab.serve.options import add_arguments as serve_options
from labkit.plan_options import add_arguments as plan_options
from labkit.shown import shown

EPILOG = "A lesson may be named by number or name: 04, 4, kv_cache or 04_kv_cache."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Returns the exit status: 0 done, 1 not all well, 2 asked wrongly."""
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if words[:1] == ["lab"] and "--" in words else len(words)
    args = parser().parse_args(words[:cut])
    args.extra = words[cut + 1 :]
    try:
        return args.run(args) or 0
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        sys.stderr.close()
        return 1
    except (ValueError, OSError) as trouble:
        print(f"inferlab: {shown(trouble, lines=True)}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """The command line as argparse sees it."""
    from inferlab.commands import speculate as speculate_cli
    from labkit.interview import command as interview

    top = argparse.ArgumentParser(
        prog="inferlab",
        description="A hands-on course on LLM inference.",
        epilog=EPILOG,
    )
    verbs = top.add_subparsers(metavar="VERB", required=True, title="verbs")

    def verb(name: str, run, text: str, work: bool = False) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text, epilog=EPILOG)
        sub.set_defaults(run=run)
        if work:
            sub.add_argument("--work", type=Path, metavar="DIR", help="your copy (default: work/)")
        return sub

    lab = verb("lab", run_lab, "update your copy of the course and open JupyterLab", work=True)
    lab.add_argument("lesson", nargs="?", help="default: where you left off")
    lab.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    lab.add_argument("--port", type=int, metavar="N", help="first port to try (default: 8888)")
    lab.usage = "inferlab lab [LESSON] [--no-browser] [--port N] [--work DIR] [-- JUPYTERLAB ...]"

    progress = verb("progress", run_progress, "how far you have come, and where to go on")
    progress.add_argument("lesson", nargs="?", help="every exercise of this one")

    reset = verb("reset", run_reset, "start a lesson afresh; a dated copy of yours is kept", True)
    reset.add_argument("lesson", metavar="LESSON")

    check = verb("check", run_check, "run your notebook and show every verdict", work=True)
    check.add_argument("lesson", metavar="LESSON")
    check.add_argument("file", nargs="?", type=Path, help="a notebook elsewhere")
    check.add_argument(
        "--timeout", type=int, default=60, metavar="S", help="seconds a cell may run"
    )

    doctor = verb("doctor", run_doctor, "look at this computer, or at a notebook before you submit")
    doctor.add_argument("notebook", nargs="?", type=Path)
    doctor.add_argument("--fix", action="store_true", help="repair the notebook (a copy is kept)")

    fetch = verb("fetch", run_fetch, "bring a real model into your cache")
    fetch.add_argument("name", nargs="?", default="smollm2", help="default: smollm2")
    fetch.add_argument("--force", action="store_true", help="fetch it again")

    generate = verb("generate", run_generate, "continue a text with the course's own engine")
    generate.add_argument("text", help="what to continue; a chat message unless --raw")
    generate.add_argument("--model", default="smollm2", help="a name or a path (default: smollm2)")
    generate.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    generate.add_argument("--raw", action="store_true", help="continue the text as it stands")

    engine_options(generate)
    speculate_cli.add_arguments(generate)

    bench = verb("bench", run_bench, "measure decoding in batches: a JSON record and a picture")
    bench.add_argument("--model", default="smollm2", help="a name or a path (default: smollm2)")
    engine_options(bench, several=True)
    bench.add_argument("--batch", default="1,4,16", metavar="N,N,...", help="default: 1,4,16")
    bench.add_argument("--prompt", type=int, default=64, metavar="N", help="tokens in the prompt")
    bench.add_argument("--steps", type=int, default=24, metavar="N", help="decode steps to time")
    bench.add_argument("--out", type=Path, default=Path("bench"), metavar="DIR")

    verb("assemble", run_assemble, "whose parts your engine has: yours, or the reference", True)

    serve = verb("serve", run_serve, "serve a model over HTTP, as OpenAI's API does", work=True)
    serve.add_argument("--mine", action="store_true", help="with your own parts: see assemble")
    serve_options(serve)

    plan_options(verb("plan", run_plan, "size a deployment of any model from its config.json"))

    course = verb("course", run_course, "lay out a folder for a class (for instructors)")
    course.add_argument("folder", type=Path, metavar="DIR")
    course.add_argument(
        "--lessons", nargs="+", default=[], metavar="LESSON", help="default: all of them"
    )

    grade = verb("grade", run_grade, "judge every submission of a lesson (for instructors)")
    grade.add_argument("lesson", metavar="LESSON")
    grade.add_argument("--from", dest="source", type=Path, metavar="FOLDER_OR_ZIP")
    grade.add_argument("--jobs", type=int, metavar="N", help="at once (default: one a core)")
    grade.add_argument("--scheduler", default="", metavar="tcp://…", help="of a dask cluster")
    grade.add_argument("--isolation", default=isolation(), choices=("full", "limits", "none"))
    grade.add_argument("--roster", type=Path, metavar="FILE", help="student ids, one a line")
    grade.add_argument("--fresh", action="store_true", help="judge again what has not changed, too")
    report = verb("report", run_report, "what a class knows, after inferlab grade")
    report.add_argument("lesson", metavar="LESSON")
    export = verb("export", run_export, "grades for Canvas, Moodle or a spreadsheet")
    export.add_argument("--to", default="csv", choices=("csv", "canvas", "moodle"))
    export.add_argument("--out", type=Path, metavar="FILE", help="default: grades-KIND.csv")
    export.add_argument("--lesson", action="append", default=[], help="only this (repeatable)")
    for sub in (grade, report, export):
        sub.add_argument("--course", type=Path, metavar="DIR", help="default: this folder")

    explore = verb("explore", run_explore, "a page that shows memory, roofline and speed at once")
    explore.add_argument("lesson", nargs="?", default="", help="open it as this lesson does")
    explore.add_argument(
        "--port", type=int, default=0, metavar="N", help="default: one that is free"
    )
    explore.add_argument(
        "--no-browser", action="store_true", help="print the address, open nothing"
    )

    drill = verb("drill", run_drill, "interview practice: drills, mock interviews, a report")
    interview.add_arguments(drill)
    drill.add_argument("--sheet", type=Path, metavar="FILE", help="open questions, for nbgrader")

    verb("build", run_build, "build solutions/ and notebooks/ (for those who write lessons)")
    return top


def work_folder(args: argparse.Namespace, root: Path | None = None) -> Path:
    """The learner's copy: --work, or the usual place."""
    from grader.learner import lab

    return args.work or lab.usual_work(root or lab.course_root())


def run_lab(args: argparse.Namespace) -> int:
    from grader.learner import lab

    root = lab.course_root()
    work = work_folder(args, root)
    lab.start(root, work, args.lesson, not args.no_browser, args.port, args.extra)


def run_progress(args: argparse.Namespace) -> int:
    from grader.learner.progress import text

    print(text(args.lesson))
    return 0


def run_reset(args: argparse.Namespace) -> int:
    from grader.learner import lab
    from labkit import store

    root = lab.course_root()
    lesson = lab.find_lesson(args.lesson, lab.released_lessons(root))
    kept = lab.start_afresh(root, work_folder(args, root).absolute(), lesson)
    store.forget(_judged_ids(lesson))
    print(f"{lesson}: as released, with no progress; your predictions stay")
    if kept:
        print(f"your copy is kept as {kept}")
    return 0


def run_check(args: argparse.Namespace) -> int:
    from grader.learner import headless, lab

    root = lab.course_root()
    lesson = lab.find_lesson(args.lesson, lab.released_lessons(root))
    path = args.file or lab.working_path(work_folder(args, root), lesson)
    if not path.is_file():
        raise ValueError(f"there is no {path}; `inferlab lab` makes your copy of a lesson")
    print(f"running {path} (measuring cells are skipped)", flush=True)
    own = args.file is None
    rows = headless.collect(path, _judged_ids(lesson), args.timeout, keep_progress=own)
    print(shown(headless.table(rows), lines=True))
    return 0 if all(row.outcome == "passed" for row in rows) else 1


def _judged_ids(lesson: str) -> tuple[str, ...]:
    """Ids of a lesson's exercises and of the questions of its knowledge check."""
    from grader.judging import registry

    exercises = tuple(exercise.id for exercise in registry.exercises(lesson))
    return exercises + tuple(question.id for question in registry.questions(lesson))


def run_doctor(args: argparse.Namespace) -> int:
    if args.notebook is None:
        if args.fix:
            raise ValueError("--fix repairs a notebook: inferlab doctor NOTEBOOK --fix")
        from grader.learner import doctor

        return doctor.main()
    from grader.notebooks import repair

    return repair.main(args.notebook, args.fix)


def run_fetch(args: argparse.Namespace) -> int:
    from inferlab.checkpoints.fetch import run_fetch as fetch

    return fetch(args)


def run_generate(args: argparse.Namespace) -> int:
    from inferlab.commands.generate import run_generate as generate

    return generate(args)


def run_assemble(args: argparse.Namespace) -> int:
    from grader.learner import assemble

    print(assemble.table(assemble.read_parts(work_folder(args))))
    return 0


def own_parts(args: argparse.Namespace) -> dict[str, str]:
    """With --mine: put the learner's parts into the engine. -> exercise -> whose part"""
    from grader.learner import assemble

    if not args.mine:
        return {}
    print("judging your parts …", file=sys.stderr)
    parts = assemble.read_parts(work_folder(args))
    assemble.install(parts)
    print(assemble.table(parts).splitlines()[-1], file=sys.stderr)
    return assemble.whose_parts(parts)


def run_serve(args: argparse.Namespace) -> int:
    from inferlab.serve.run import run_serve as serve

    return serve(args, own_parts(args))


def run_plan(args: argparse.Namespace) -> int:
    from labkit.plan import run_plan as plan

    return plan(args)


def run_explore(args: argparse.Namespace) -> int:
    from grader.learner import lab
    from labkit.explorer.server import run

    lesson = args.lesson and lab.find_lesson(args.lesson, lab.released_lessons(lab.course_root()))
    return run(args.port, lesson[:2], not args.no_browser)


def run_bench(args: argparse.Namespace) -> int:
    from inferlab.commands.bench import bench
    from inferlab.engines.choose import load_engine
    from labkit.figures import bench as bench_figure
    from labkit.measure import timing

    try:
        batches = [int(n) for n in args.batch.split(",")]
    except ValueError:
        raise ValueError(f"--batch {args.batch!r} must be whole numbers such as 1,4,16") from None
    rows = []
    for dtype in args.dtype.split(","):
        engine = load_engine(args.model, args.engine, args.device, dtype.strip())
        for row in bench(engine, batches, args.prompt, args.steps):
            print(row.line(), flush=True)
            rows.append(row)
    model = Path(args.model).name
    record = timing.write_record(args.out / "bench.json", [row.record() for row in rows])
    text = bench_figure.alt(rows)
    picture = bench_figure.save(bench_figure.draw(rows, model), args.out / "bench.png", text)
    print(f"written: {record} and {picture}")
    return 0


def isolation() -> str:
    """How far student code is kept in unless told otherwise."""
    return os.environ.get("INFERLAB_ISOLATION", "full")


def run_course(args: argparse.Namespace) -> int:
    from grader.classroom import lay_out

    return lay_out.main(args)


def run_grade(args: argparse.Namespace) -> int:
    from grader.classroom import grade

    return grade.main(args)


def run_report(args: argparse.Namespace) -> int:
    from grader.classroom import report

    return report.main(args)


def run_export(args: argparse.Namespace) -> int:
    from grader.classroom import export

    return export.main(args)


def run_drill(args: argparse.Namespace) -> int:
    from grader.judging import registry
    from labkit.interview import command

    if args.sheet is not None:
        from grader.classroom import interview_sheet

        return interview_sheet.main(args)
    return command.run(args, registry.questions(), registry.predictions())


def run_build(args: argparse.Namespace) -> int:
    from inferlab.data import IS_INSTALLED, ROOT

    if IS_INSTALLED:
        raise ValueError(f"build needs inferlab's repository; this is a copy from a wheel, {ROOT}")
    from grader.notebooks import build

    return build.main([])


if __name__ == "__main__":
    sys.exit(main())
