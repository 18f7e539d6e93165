"""One sitting of an evaluation: environments, policy and results brought together, and taken down again."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_gui.config import ConfigError, GuiConfig
from verl_gui.envs.base import EnvFailure
from verl_gui.evaluation.engine import RunSettings, evaluate
from verl_gui.evaluation.policies import PolicyOptions, open_policy
from verl_gui.evaluation.policies.spec import environments_for
from verl_gui.evaluation.progress import Progress
from verl_gui.evaluation.runs import Run, RunLog, open_slots
from verl_gui.tasks.sources import TaskInstance

if TYPE_CHECKING:
    from verl_gui.envs.pool import EnvPool

logger = logging.getLogger(__name__)

POOL_NAME = "gui_evaluation_pool"


class SessionError(RuntimeError):
    """What an evaluation stands on does not start."""


@dataclass(frozen=True)
class Session:
    """What one sitting cost.

    Attributes:
        seconds: of running, start-up of policy and environments left out. start_s: that start-up.
        runs: ended in this sitting.
        num_envs: environments.
        utilisation: share of the time in which an environment was held by a run.
        working: share of the time in which it was inside reset, step or evaluate.
    """

    seconds: float
    start_s: float
    runs: int
    num_envs: int
    utilisation: float
    working: float


def run_session(
    instances: Sequence[TaskInstance],
    options: PolicyOptions,
    gui: GuiConfig,
    settings: RunSettings,
    out: Path,
    *,
    label: str,
) -> list[Run]:
    """Do the runs that ``out`` lacks and return all there are.

    Args:
        instances: what to run on.
        options: which policy.
        gui: environments; rollout and reward stand in ``settings``.
        settings: how to run.
        out: directory of the results, see :class:`verl_gui.evaluation.runs.RunLog`.
        label: stands before the progress bar.

    Raises:
        ResultsError: ``out`` belongs to something else.
        SessionError: Ray does not start.
        EvaluationStopped, PolicySetupError: see :func:`verl_gui.evaluation.engine.evaluate`.
    """
    depends = {**options.settings(), **settings.settings(), "env": _plain(gui)}
    log = RunLog(out, depends)
    try:
        if open_slots(instances, log.runs, k=settings.k, retries=settings.retries):
            asyncio.run(_session(instances, options, gui, settings, log, label))
        return list(log.runs)
    finally:
        log.close()


async def _session(
    instances: Sequence[TaskInstance],
    options: PolicyOptions,
    gui: GuiConfig,
    settings: RunSettings,
    log: RunLog,
    label: str,
) -> None:
    import ray

    from verl_gui.envs.pool import get_env_pool

    began = time.monotonic()
    config = environments_for(options, gui.env)
    own_ray = not ray.is_initialized()
    if own_ray:
        _start_ray()
    try:
        pool = get_env_pool(config, POOL_NAME)  # its environments start while the policy does
        try:
            concurrency = config.num_envs + config.spares  # a spare is set up for a run that waits
            async with open_policy(
                options, settings.rollout, concurrency=concurrency, directory=log.directory
            ) as policy:
                await _metrics(pool)  # forget the start-up
                started, before = time.monotonic(), len(log.runs)
                try:
                    await evaluate(
                        instances,
                        policy,
                        pool,
                        log,
                        settings,
                        concurrency=concurrency,
                        progress=Progress(label),
                    )
                finally:
                    numbers = await _metrics(pool)
                    session = Session(
                        seconds=round(time.monotonic() - started, 1),
                        start_s=round(started - began, 1),
                        runs=len(log.runs) - before,
                        num_envs=config.num_envs,
                        utilisation=round(numbers.get("env/utilisation", 0.0), 4),
                        working=round(numbers.get("env/working", 0.0), 4),
                    )
                    with open(log.directory / "sessions.jsonl", "a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(session)) + "\n")
        finally:
            await pool.close()
    finally:
        if own_ray:
            ray.shutdown()


def _start_ray() -> None:
    """Join the cluster that ``RAY_ADDRESS`` names, or start one on this machine.

    Raises:
        SessionError: it does not come up; twice, because a busy machine may miss Ray's own 30 s once.
    """
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    local: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"include_dashboard": False}
    for last in (False, True):
        try:
            ray.init(log_to_driver=False, logging_level=logging.WARNING, **local)
            return
        except Exception as error:  # Ray raises nothing more special when its node is late
            ray.shutdown()
            if last:
                raise SessionError(f"Ray does not start: {error}") from error
            logger.warning("Ray did not start, trying once more: %s", error)


async def _metrics(pool: EnvPool) -> dict[str, float]:
    """The pool's numbers since the last call; none when it does not answer, which must not end anything."""
    try:
        return await pool.metrics()
    except EnvFailure as failure:
        logger.warning("no numbers of the environments: %s", failure)
        return {}


def read_sessions(directory: Path) -> list[Session]:
    """The sittings that ended in order; a killed one has left none."""
    file = directory / "sessions.jsonl"
    if not file.exists():
        return []
    sessions = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            sessions.append(Session(**json.loads(line)))
        except (ValueError, TypeError) as error:
            logger.warning("%s: a line is left out: %s", file, error)
    return sessions


def load_gui_config(
    file: Path | None, overrides: Sequence[str], instances: Sequence[TaskInstance]
) -> GuiConfig:
    """The ``gui:`` node of a recipe, with single keys changed.

    Args:
        file: a recipe (YAML); None starts from the defaults.
        overrides: ``gui.<key>=<value>``, values in YAML.
        instances: without a recipe they choose the backend, where they are all of MiniWoB++.

    Raises:
        ConfigError: the file or a key cannot be used.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    wrong = [o for o in overrides if not o.startswith("gui.") or "=" not in o]
    if wrong:
        raise ConfigError(f"--set {wrong[0]}: expected gui.<key>=<value>")
    try:
        config = OmegaConf.load(file) if file is not None else OmegaConf.create({"gui": {"env": {}}})
        config = OmegaConf.merge(config, OmegaConf.from_dotlist(list(overrides)))
        env = OmegaConf.select(config, "gui.env")
        if env is not None and env.get("backend") is None:
            if any(instance.task.domain != "miniwob" for instance in instances):
                raise ConfigError("which environments? give --config RECIPE or --set gui.env.backend=NAME")
            env.backend = "miniwob"
        return GuiConfig.from_config(config)
    except (OSError, OmegaConfBaseException) as error:
        raise ConfigError(f"{file or 'the command line'}: {error}") from error


def _plain(gui: GuiConfig) -> Mapping[str, Any]:
    """The environments as far as results depend on them."""
    return {"backend": gui.env.backend, "options": json.loads(json.dumps(dict(gui.env.options)))}
