"""Commands of pages, quickly: ``headwater`` in a fork of a process that has imported all of it.

A page runs several commands, and each takes longer to start than to run. What the shell would have
to understand, and commands that start further processes or run on, are left to the shell.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.pages import run_in_shell
from tests.support.zygote import Zygote, serve

_SHELL = re.compile(r"[|&;<>$`*?#~]")
_LEFT_TO_SHELL = {"run", "serve", "console", "demo", "verify", "outbox", "top"}


class PageCommands(Zygote):
    """Runs the commands of pages; returns how each ended, and what it printed."""

    def __init__(self) -> None:
        super().__init__("tests.support.page_commands")

    def __call__(
        self, command: str, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the current directory."""
        words = [] if _SHELL.search(command) else shlex.split(command)
        if words[:1] != ["headwater"] or words[1] in _LEFT_TO_SHELL:
            return run_in_shell(command, environment)
        with tempfile.NamedTemporaryFile(prefix="hw-printed-") as printed:
            order: dict[str, Any] = {"words": words[1:], "env": environment, "cwd": str(Path.cwd())}
            code = self.wait(self.start(printed=printed.name, **order))
            return subprocess.CompletedProcess(command, code, printed.read().decode())


def _run(order: dict[str, Any]) -> None:
    from headwater.__main__ import main

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    for path, mode, places in (
        (os.devnull, os.O_RDONLY, (0,)),
        (order["printed"], os.O_WRONLY, (1, 2)),
    ):
        opened = os.open(path, mode)
        for place in places:
            os.dup2(opened, place)
        os.close(opened)
    sys.argv = ["headwater", *order["words"]]
    # Ends as the program does: SystemExit goes up to the end of this process.
    main()


if __name__ == "__main__":
    import importlib
    import pkgutil

    import headwater.cli
    import headwater.client
    import headwater.outbox

    for module in pkgutil.walk_packages(headwater.cli.__path__, "headwater.cli."):
        importlib.import_module(module.name)
    serve(_run)
