"""An environment of its own for OSWorld's ``desktop_env``, whose packages cannot live beside verl."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

DESKTOP_ENV = "desktop-env==1.0.2"
"""The release that :mod:`.scorer` and the contract test were written for."""

# What its evaluators and controllers import. Its own list has 259 packages, most for OSWorld's agents.
# fmt: off
_REQUIREMENTS = [
    "numpy<2", "requests", "pillow", "gymnasium==0.28.1", "requests-toolbelt", "playwright", "pydrive",
    "python-dotenv", "docker", "psutil", "filelock", "tqdm", "lxml", "cssselect", "xmltodict", "openpyxl",
    "python-docx", "python-pptx", "pypdf", "PyPDF2", "pdfplumber", "rapidfuzz", "pyacoustid", "ImageHash",
    "scikit-image", "librosa", "pymupdf", "beautifulsoup4", "borb", "formulas", "fastdtw", "odfpy",
    "mutagen", "pandas", "pytz", "tldextract", "pyyaml", "opencv-python-headless==4.11.0.86", "setuptools",
    "msgspec",
]
# fmt: on

# One evaluator reads text from pictures with easyocr, which needs torch; the others only import it.
_EASYOCR = """raise_on_use = "easyocr is not installed; install it here to score tasks that read pictures"


class Reader:
    def __init__(self, *args, **kwargs):
        raise RuntimeError(raise_on_use)
"""


def default_directory() -> Path:
    """Where the environment is made."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "verl-gui" / DESKTOP_ENV.replace("==", "-")


def build_venv(directory: Path) -> Path:
    """Make the environment, unless it is there; returns its interpreter.

    Raises:
        RuntimeError: uv is missing or an installation failed; the message has its last words.
    """
    python = directory / "bin" / "python"
    complete = directory / ".complete"
    if complete.exists() and complete.read_text() == " ".join([DESKTOP_ENV, *_REQUIREMENTS]):
        return python
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise RuntimeError("uv is not installed; `pip install uv`")
    _run([uv, "venv", "-q", "--clear", "--python", sys.executable, str(directory)])
    install = [uv, "pip", "install", "-q", "--python", str(python)]
    _run([*install, "--no-deps", DESKTOP_ENV])
    _run([*install, *_REQUIREMENTS])
    site = next((directory / "lib").glob("python3*/site-packages"))
    (site / "easyocr.py").write_text(_EASYOCR)
    complete.write_text(" ".join([DESKTOP_ENV, *_REQUIREMENTS]))
    return python


def _run(command: list[str]) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if answer.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} …: {answer.stderr.strip()[-1000:]}")
