"""An IPython that does what a notebook's kernel does, where there is no terminal and no network."""

from __future__ import annotations

import subprocess
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.text import SList

NO_PACKAGES = "packages are not installed while a notebook is graded: what the course needs is here"


class NotebookShell(InteractiveShell):
    """%matplotlib and %gui do nothing, `!` lines run without a terminal, %pip says why not."""

    def enable_gui(self, gui: Any = None) -> None:
        """No window is ever shown here."""

    def system(self, cmd: str) -> None:
        """Run a `!` line and print what it writes."""
        status, text = _run(self.var_expand(cmd, depth=1))
        print(text, end="")
        self.user_ns["_exit_code"] = status

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        """What a `!` line writes, as `files = !ls` has it."""
        _, text = _run(self.var_expand(cmd, depth=depth + 1))
        return SList(text.splitlines()) if split else text


def _run(command: str) -> tuple[int, str]:
    done = subprocess.run(
        command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return done.returncode, done.stdout


def no_packages(line: str) -> None:
    """What %pip and its like say."""
    print(NO_PACKAGES)


def add_magics(shell: InteractiveShell) -> None:
    """Magics that a kernel has and that would wait for a network."""
    register: Any = shell.register_magic_function
    for name in ("pip", "conda", "mamba", "micromamba", "uv"):
        register(no_packages, magic_name=name)
