"""The walls: what a student's process can see, write, reach and use up."""

import ctypes
import os
import socket
import time
from pathlib import Path

import pytest
from isolated_submissions import CHECKS, GOOD, ROOT, SHORT, body, grade, lost, said

from grader.judging.isolated.students import Isolation, OwnFault, Student, Zygote, hidden, readable
from sandbox import walls
from sandbox.walls import Limits, View, enter

PR_SET_DUMPABLE = 4
LEVEL, WHY = walls.level()
needs_walls = pytest.mark.skipif(LEVEL != "full", reason=f"NOT TESTED: no namespaces here ({WHY})")
pytestmark = needs_walls


# ---- files -------------------------------------------------------------------------------------


def test_nothing_of_the_course_but_its_data_can_be_seen(zygote):
    shown = said(zygote, f"import os\nprint(sorted(os.listdir({str(ROOT)!r})))")
    within = [Path(path) for path in readable() if Path(path).is_relative_to(ROOT)]
    allowed = {path.relative_to(ROOT).parts[0] for path in within}  # an environment may lie here
    assert allowed <= {"data", ".venv"}
    assert shown.strip() == str(sorted(allowed))


@pytest.mark.parametrize("name", ["solutions", "grader", "src", "gradebook.db", "tests", ".git"])
def test_there_is_no_way_to_the_rest_of_the_course(zygote, name):
    source = (
        f"import os\nfor top in ('', '/proc/self/root', '/proc/1/root', '/proc/1/cwd/../../..',\n"
        f"            {str(ROOT / 'data')!r} + '/..', '/proc/self/cwd/../..'):\n"
        f"    for path in (top + {str(ROOT / name)!r}, os.path.join(top, {name!r})):\n"
        "        if os.path.exists(path): print('SEEN', path)\n"
        f"os.symlink({str(ROOT / name)!r}, 'x')\nprint(os.path.exists('x'))\n"
        f"try: os.link({str(ROOT / name)!r}, 'y')\nexcept OSError: print('no')"
    )
    assert said(zygote, source) == "False\nno\n"


def inside(view: View, look, user: int | None = None) -> str:
    """What `look` says within such walls, run in a process of its own, by root as another user."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if user is not None:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # as for who starts as that user
            enter(view)
            os.write(send, str(look()).encode())
        except BaseException as error:
            os.write(send, repr(error).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as pipe:
        shown = pipe.read()
    os.waitpid(child, 0)
    return shown


def test_an_ordinary_user_can_build_the_same_walls():
    if os.geteuid() != 0:
        pytest.skip("all tests of this file run as an ordinary user here")
    seen = {}
    for user in (None, 1000):
        shown = inside(View(), _facts, user)
        if "CannotIsolate" in shown or "PermissionError" in shown:
            pytest.skip(f"NOT TESTED: an ordinary user may not build walls here ({shown})")
        seen[user] = shown
    assert seen[1000] == seen[None]
    assert "[1] 0000000000000000 2" in seen[1000]


def _facts() -> str:
    status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return f"{processes} {status['CapEff']} {status['Seccomp']} {sorted(os.listdir('/'))}"


@pytest.fixture
def installed():
    """A course in a folder that the system's programs are read from, such as /opt."""
    folder = Path("/opt") / f"course-{os.getpid()}"
    try:
        (folder / "data").mkdir(parents=True)
    except OSError:
        pytest.skip("NOT TESTED: this user may not write to /opt")
    try:
        (folder / "secret").write_text("the answers")
        (folder / "data" / "models").write_text("{}")
        yield folder
    finally:
        for file in sorted(folder.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        folder.rmdir()


def test_a_course_in_opt_is_hidden_too(installed):
    view = View(readable=(str(installed / "data"),), hidden=(str(installed),))
    assert inside(View(), lambda: os.listdir(installed)) != "[]"  # without hidden it can be seen
    assert inside(view, lambda: os.listdir(installed)) == "['data']"
    assert inside(view, lambda: os.listdir(installed / "data")) == "['models']"
    assert "Read-only" in inside(view, lambda: (installed / "x").write_text(""))


def test_what_is_hidden_and_what_can_be_read():
    assert str(ROOT) in hidden()
    assert "/usr/local/share/nbgrader" in hidden()  # others' submissions: nbgrader's own default
    assert str(ROOT / "data") in readable()


def test_nothing_outside_its_folder_can_be_written(zygote):
    folders = ("/", "/usr", "/dev", "/etc", "/proc/sys/kernel", str(ROOT / "data"))
    source = (
        f"import os, sys\nfor folder in (*{folders!r}, sys.prefix, os.path.dirname(os.__file__)):\n"
        "    try: open(os.path.join(folder, 'x'), 'w'); print('WRITTEN', folder)\n"
        "    except OSError: pass\n"
        "try: os.mknod('/tmp/d', 0o20666, os.makedev(1, 1)); print('DEVICE')\n"
        "except OSError: pass\n"
        "for file in ('/proc/sysrq-trigger', '/proc/1/mem', '/dev/mem', '/dev/kmsg'):\n"
        "    try: open(file, 'w').write('x'); print('WRITTEN', file)\n"
        "    except OSError: pass"
    )
    assert said(zygote, source) == ""


def test_its_folder_is_empty_again_for_the_next(zygote):
    said(zygote, "open('left', 'w').write('x'); open('/dev/shm/left', 'w').write('x')")
    shown = said(zygote, "import os\nprint(os.listdir('.'), os.listdir('/dev/shm'), os.getcwd())")
    assert shown in ("[] [] /tmp\n", "[] [] /scratch\n")  # the second for a course under /tmp


# ---- network, processes, privileges --------------------------------------------------------------

CALLS_OUT = {
    "TCP": "socket.create_connection(('127.0.0.1', PORT), 2)",
    "UDP": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "a name": "socket.getaddrinfo('example.org', 80)",
    "an abstract socket": "socket.socket(socket.AF_UNIX).connect('\\0NAME')",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "the host of a virtual machine": "socket.socket(socket.AF_VSOCK)",
    "raw packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
}


@pytest.mark.parametrize("call", CALLS_OUT.values(), ids=CALLS_OUT)
def test_there_is_no_network(zygote, call):
    name = f"inferlab-{os.getpid()}"
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as other:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        other.bind(f"\0{name}")
        other.listen()
        call = call.replace("PORT", str(listener.getsockname()[1])).replace("NAME", name)
        shown = said(zygote, f"import socket\ntry:\n    {call}; print('OUT')\nexcept OSError: pass")
    assert shown == ""


def test_it_has_no_privileges_and_cannot_get_any(zygote):
    shown = said(zygote, "print(open('/proc/self/status').read())")
    assert "CapEff:\t0000000000000000" in shown
    assert "CapBnd:\t0000000000000000" in shown
    assert "NoNewPrivs:\t1" in shown
    assert "Seccomp:\t2" in shown


KERNEL = {
    "a namespace of its own": "libc.unshare(0x10000000)",
    "a mount": "libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None)",
    "another root": "libc.chroot(b'/tmp')",
    "memory that no limit counts": "libc.memfd_create(b'x', 0)",
    "memory shared with others": "libc.shmget(0, 4096, 0o1600)",
    "looking into a process": "libc.ptrace(16, 1, 0, 0)",
    "a new user namespace by clone": "libc.syscall(56, 0x10000011, 0, 0, 0, 0)"
    if os.uname().machine == "x86_64"
    else "libc.unshare(0x20000000)",
}


@pytest.mark.parametrize("call", KERNEL.values(), ids=KERNEL)
def test_the_kernel_refuses(zygote, call):
    source = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"print({call}, os.strerror(ctypes.get_errno()))"
    )
    assert said(zygote, source).strip() == "-1 Operation not permitted"


def test_it_sees_no_process_but_its_own(zygote):
    shown = said(zygote, "import os\nprint([p for p in os.listdir('/proc') if p.isdigit()])")
    assert shown.strip() == "['1']"


def alive(marker: str) -> bool:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in entry.read_bytes():
                return True
        except OSError:
            continue
    return False


def gone_soon(marker: str) -> None:
    deadline = time.monotonic() + 10
    while alive(marker):
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.05)


STAYS = {
    "in a session of its own": "subprocess.Popen(command, start_new_session=True)",
    "forked twice": "if os.fork() == 0:\n    os.setsid()\n"
    "    if os.fork() == 0: os.execv(command[0], command)\n    os._exit(0)",
    "deaf": "subprocess.Popen(command, preexec_fn=lambda: [signal.signal(s, signal.SIG_IGN) "
    "for s in (1, 2, 15)])",
}


@pytest.mark.parametrize("start", STAYS.values(), ids=STAYS)
def test_no_orphan_survives(zygote, start):
    marker = f"sleep-{time.time_ns()}"
    said(
        zygote,
        "import os, signal, subprocess, sys\n"
        f"command = [sys.executable, '-c', 'import time; time.sleep(60)', {marker!r}]\n{start}",
    )
    gone_soon(marker)


def test_a_process_that_will_not_die_with_its_guard_dies(zygote):
    """It asks the kernel to be left alone, then becomes a program that never reads its line."""
    marker = f"sleep-{time.time_ns()}"
    stubborn = (
        "import ctypes, os, signal, sys\nctypes.CDLL(None).prctl(1, 0)\n"
        "for s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        f"os.execv(sys.executable, [sys.executable, '-c', 'while True: pass', {marker!r}])"
    )
    result = grade(zygote, [stubborn], times=SHORT)
    assert [g.reason for g in result.lost.values()] == ["out of time"] or result.lost
    gone_soon(marker)


# ---- using everything up -------------------------------------------------------------------------

FLOODS = {
    "processes": "import os\ntry:\n    while True:\n        if os.fork() == 0: os.fork()\n"
    "except OSError: pass",
    "threads": "import threading, time\ntry:\n"
    "    while True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    "except RuntimeError: pass",
    "its folder": "try:\n    for i in range(100):\n        with open(f'big{i}', 'wb') as f:\n"
    "            for _ in range(60): f.write(bytes(2 ** 20))\nexcept OSError: pass",
    "one file": "try:\n    with open('big', 'wb') as f:\n"
    "        for _ in range(10_000): f.write(bytes(2 ** 20))\nexcept OSError: pass",
    "small files": "try:\n    for i in range(10 ** 6): open(f'f{i}', 'w').close()\n"
    "except OSError: pass",
    "sockets": "import socket\nkept = []\ntry:\n"
    "    while True: kept.append(socket.socketpair())\nexcept OSError: del kept",
    "displays": "from IPython.display import display, HTML\n"
    "for _ in range(3000): display(HTML('x' * 1000))",
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_costs_the_one_who_makes_it(zygote, flood, record_property):
    """It may lose its cell or what comes after; it does not stop, and the next one is as ever."""
    results = grade(zygote, [flood, *GOOD], times=SHORT).results
    assert len(results) == len(CHECKS)
    assert lost(zygote, GOOD) == {}
    record_property("count", "submissions graded by the isolated judge")


def test_one_students_processes_do_not_count_as_anothers(zygote):
    """Two at a time, the first with as many processes as it may have."""
    many = "import os, time\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(20)\n" \
           "except OSError: print('no more')"  # fmt: skip
    first, second = (zygote.fork({}) for _ in range(2))
    try:
        assert "no more" in str(first.run_cell(many, 20))
        assert "hi" in str(second.run_cell("!echo hi", 20))
    finally:
        first.end()
        second.end()


def test_memory_of_many_processes_is_counted_together():
    limits = Limits(all_processes_bytes=400 * 2**20)
    cell = (
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n"
        "        x = bytearray(100 * 2 ** 20)\n        time.sleep(20)\n        os._exit(0)\n"
        "time.sleep(20)"
    )
    with Zygote(Isolation("full", limits)) as small:
        result = grade(small, [cell, *GOOD])
    assert [gone.reason for gone in result.lost.values()] == ["exited"]
    assert result.reasons() == {}


def test_a_large_answer_does_not_make_the_judge_large(zygote):
    before = int(Path("/proc/self/statm").read_text().split()[1])
    assert lost(zygote, body("return bytes(300_000_000)")) == {
        "kv_bytes_per_token": "too much output"
    }
    grown = int(Path("/proc/self/statm").read_text().split()[1]) - before
    assert grown * os.sysconf("SC_PAGE_SIZE") < 200 * 2**20


# ---- the instructor's side -----------------------------------------------------------------------


def test_the_instructors_environment_is_not_there(zygote):
    shown = said(zygote, "import os\nprint(dict(os.environ))\n"
                         "print(open('/proc/self/environ').read())")  # fmt: skip
    for name in ("SECRET_TOKEN", "INFERLAB_HIDDEN_SEED", "PYTEST_CURRENT_TEST"):
        assert name not in shown
    assert os.environ["PATH"] not in shown


def test_the_student_side_has_no_grader(zygote):
    shown = said(zygote, "import sys\nprint([m for m in sys.modules if m.startswith('grader')])")
    assert shown.strip() == "['grader']"  # the verbs alone
    assert "No module named" in said(zygote, "import grader.judging.judge")


def test_a_process_that_cannot_be_set_up_is_our_own_fault(zygote):
    with pytest.raises(OwnFault, match="cannot be taken out"):
        zygote.fork({"inferlab.kv_cache.KVCache": "a class is no function"})
    with pytest.raises(OwnFault, match="cannot be taken out"):
        zygote.fork({"inferlab.nothing.of_that_name": "there is none"})


def test_a_zygote_that_has_died_is_started_again():
    with Zygote(Isolation("full")) as mortal:
        mortal._process.kill()
        mortal._process.wait()
        student = mortal.fork({})
        assert isinstance(student, Student)
        assert student.run_cell("1", 20)[1]
        student.end()
