"""Commands in the guest."""

import io
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any, BinaryIO

Command = str | Sequence[str]
EXECUTE_TIMEOUT_S = 120.0
_CHROMIUM = [
    "chromium",
    "--no-sandbox",  # a second sandbox cannot be built inside ours
    "--test-type",
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
]
_LIBREOFFICE = ["libreoffice", "--nologo", "--norestore", "--nofirststartwizard"]
_OPENERS = {".html": _CHROMIUM} | dict.fromkeys(
    (".csv", ".odt", ".ods", ".odp", ".doc", ".docx", ".xls", ".xlsx", ".ppt", ".pptx"), _LIBREOFFICE
)


def prepared(command: Command, shell: bool) -> str | list[str]:
    """What subprocess takes: a string for a shell, a list of words otherwise, with ``~`` put out."""
    if shell:
        return command if isinstance(command, str) else " ".join(command)
    words = shlex.split(command) if isinstance(command, str) else list(command)
    return [os.path.expanduser(word) if word.startswith("~/") else word for word in words]


def execute(command: Command, shell: bool = False, timeout_s: float = EXECUTE_TIMEOUT_S) -> dict[str, Any]:
    """Run a command to its end: status, output, error and returncode.

    Its output goes to files, not pipes: a program that the command leaves running would hold a pipe open, and
    the end of the command would go unnoticed.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        done = subprocess.run(
            prepared(command, shell),
            shell=shell,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            timeout=timeout_s,
        )
        return {
            "status": "success",
            "output": _text(output),
            "error": _text(errors),
            "returncode": done.returncode,
        }


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return io.TextIOWrapper(file, errors="replace").read()  # as subprocess reads text: one kind of newline


def launch(command: Command, shell: bool = False) -> None:
    """Start a program and leave it running."""
    subprocess.Popen(
        prepared(command, shell),
        shell=shell,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def opener(path: str) -> list[str] | None:
    """The command that opens a file or directory, or None if the guest has no program for it."""
    if os.path.isdir(path):
        command = ["pcmanfm"]
    else:
        command = _OPENERS.get(os.path.splitext(path)[1].lower(), ["mousepad"])
    return [*command, path] if shutil.which(command[0]) else None
