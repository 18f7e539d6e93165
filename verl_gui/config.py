"""Everything that is configured under ``gui:``, one dataclass a node, one sentence a key.

Recipes add the node to verl's own configuration; :meth:`GuiConfig.from_config` checks it once, at start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from verl_gui.envs.pool_state import EnvPoolConfig

T = TypeVar("T")


class ConfigError(ValueError):
    """A key under ``gui:`` that cannot be used; the message names the key, the value and what it must be."""


@dataclass(frozen=True)
class RolloutConfig:
    """How the agent looks and acts."""

    grammar: str = "uitars"
    """Name of the grammar the model answers in; see ``verl_gui.actions.grammar_names()``."""
    max_steps: int = 15
    """Answers an episode may have before it is evaluated as it stands."""
    history_images: int = 15
    """Screenshots the model sees at once; older ones leave the context."""
    when_full: Literal["end", "window"] = "end"
    """What happens when the next screenshot does not fit data.max_response_length: the episode ends and is
    evaluated as it stands, or goes on in a new sequence with the last screenshots that fit the prompt."""
    min_pixels: int = 3136
    """Least pixels of the picture the model sees; screenshots are scaled up to it."""
    max_pixels: int = 2116800
    """Most pixels of the picture the model sees; screenshots are scaled down to it."""
    max_new_tokens: int = 512
    """Tokens one answer may have."""
    system_prompt: str | None = None
    """System prompt; ``null`` takes the grammar's own, which lists its action space."""
    language: str = "en"
    """Language the grammar's system prompt asks for."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "history_images", "min_pixels", "max_pixels", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"gui.rollout.{name}={getattr(self, name)}: expected at least 1")
        if self.min_pixels > self.max_pixels:
            raise ConfigError(
                f"gui.rollout.min_pixels={self.min_pixels} is above max_pixels={self.max_pixels}"
            )


@dataclass(frozen=True)
class RewardConfig:
    """What an episode is worth: the environment's score plus the format penalty."""

    format_penalty: float = -0.5
    """Added for malformed answers, at most 0 (ARPO: 0.5 x -1)."""
    format_aggregation: Literal["once", "per_step"] = "once"
    """``once``: any malformed answer costs the penalty once, as in ARPO; ``per_step``: each costs its share,
    the penalty times the fraction of malformed answers."""
    end_on_format_error: bool = False
    """Whether a malformed answer ends the episode (it is then evaluated as it stands)."""

    def __post_init__(self) -> None:
        if self.format_penalty > 0:
            raise ConfigError(f"gui.reward.format_penalty={self.format_penalty}: expected 0 or less")


@dataclass(frozen=True)
class ReportConfig:
    """What is written down for people to look at."""

    dir: str | None = None
    """Directory of the run's trajectory records; ``null`` writes none."""
    train_every: int = 8
    """One in so many training episodes is recorded."""
    validate_every: int = 1
    """One in so many validation episodes is recorded."""
    track: int = 0
    """So many recorded episodes of every step and validation become pictures in TensorBoard and W&B, where
    ``trainer.logger`` names them."""

    def __post_init__(self) -> None:
        for name, least in (("train_every", 1), ("validate_every", 1), ("track", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"gui.report.{name}={getattr(self, name)}: expected at least {least}")


@dataclass(frozen=True)
class AllocationConfig:
    """How many rollouts a prompt gets; see ``verl_gui.tasks.allocation``."""

    name: str = "fixed"
    """``fixed``: rollout.n for each; ``success_rate``: fewer for tasks that are mostly solved; or one of your
    own (``register_allocator``)."""
    n_min: int = 2
    """Least rollouts of a prompt; a group of one teaches nothing."""
    n_max: int | None = None
    """Most rollouts of a prompt; ``null`` for rollout.n."""
    total_min: int | None = None
    """Least rollouts of a batch of train_batch_size prompts; ``null`` sets no bound beyond n_min for each."""
    total_max: int | None = None
    """Most rollouts of such a batch; ``null`` for train_batch_size x rollout.n."""
    easy_above: float = 0.6
    """``success_rate``: a recent success rate up to which a task gets all its rollouts."""
    min_attempts: int = 8
    """``success_rate``: recent attempts below which a task gets all its rollouts."""

    def __post_init__(self) -> None:
        for name in ("n_min", "n_max", "total_min", "total_max", "min_attempts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"gui.tasks.allocation.{name}={value}: expected at least 1")
        if not 0.0 <= self.easy_above < 1.0:
            raise ConfigError(f"gui.tasks.allocation.easy_above={self.easy_above}: expected a rate in [0, 1)")


@dataclass(frozen=True)
class StepLimitConfig:
    """A step limit for each task, learnt from its successes; see ``verl_gui.tasks.step_limit``."""

    slack: float | None = None
    """The limit is the longest success so far times this, at most rollout.max_steps; ``null``: off."""
    least: int = 3
    """No task gets fewer steps than this."""
    min_successes: int = 2
    """Successes a task needs before its limit is lowered."""

    def __post_init__(self) -> None:
        if self.slack is not None and self.slack < 1.0:
            raise ConfigError(
                f"gui.tasks.step_limit.slack={self.slack}: below 1 it would cut off known solutions"
            )
        if self.least < 1 or self.min_successes < 1:
            raise ConfigError("gui.tasks.step_limit: least and min_successes must be at least 1")


@dataclass(frozen=True)
class CooldownConfig:
    """A rest for tasks that only fail; see ``verl_gui.tasks.curriculum``."""

    failures: int = 0
    """Failed attempts in a row after which a task rests; 0 turns it off."""
    steps: int = 10
    """Training steps that the rest lasts."""

    def __post_init__(self) -> None:
        if self.failures < 0 or self.steps < 1:
            raise ConfigError("gui.tasks.cooldown: expected failures of at least 0 and steps of at least 1")


@dataclass(frozen=True)
class TasksConfig:
    """Which tasks are trained on, how often and for how long."""

    bad_tasks: Literal["refuse", "skip"] = "refuse"
    """What a task that cannot be used leads to: the run is refused, or it is left out and reported."""
    test_share: float = 0.1
    """Share of the tasks of a source ``PATH@test``; the rest is ``PATH@train``."""
    split_by: Literal["task", "seed"] = "task"
    """What ``@train`` and ``@test`` divide: whole tasks, or the seeds of each task."""
    validate_on_training_tasks: bool = False
    """Whether train and validation files may share tasks (a validation success then proves little)."""
    weights: Sequence[float] = ()
    """A weight for each source of data.train_files: its share of the prompts, whatever its size. Empty: all
    tasks alike, in verl's own order."""
    allocation: AllocationConfig = field(default_factory=AllocationConfig)
    """How many rollouts a prompt gets."""
    step_limit: StepLimitConfig = field(default_factory=StepLimitConfig)
    """A step limit for each task."""
    cooldown: CooldownConfig = field(default_factory=CooldownConfig)
    """A rest for tasks that only fail."""

    def __post_init__(self) -> None:
        if not 0.0 < self.test_share < 1.0:
            raise ConfigError(f"gui.tasks.test_share={self.test_share}: expected a share between 0 and 1")
        for weight in self.weights:
            if not isinstance(weight, int | float) or isinstance(weight, bool) or not weight > 0:
                raise ConfigError(f"gui.tasks.weights={list(self.weights)}: expected numbers above 0")


@dataclass(frozen=True)
class ReplayConfig:
    """Replay of successes (ARPO); see ``verl_gui.replay.sampler``, which must be the run's sampler."""

    enable: bool = False
    """Whether successes are stored and put into groups that failed."""
    capacity_per_task: int = 8
    """Successes that a task (with its seed) keeps; the oldest leaves first."""
    min_score: float = 0.1
    """Only episodes with an environment score above it are stored."""
    inject_below: float = 0.2
    """A group gets a success only if each of its scores is below this."""
    freshness_tau: float | None = 20.0
    """Training steps after which a success is drawn 1/e times as often; ``null``: all alike."""
    old_log_probs: Literal["stored", "recompute"] = "stored"
    """``stored``: replayed rows are weighed by the log-probs they were sampled with, which is verl's
    algorithm.rollout_correction with rollout_is=token; ``recompute``: their ratio starts at 1, which is
    rollout_is=null. A run in which the two disagree is refused."""
    replaced: Literal["first", "random", "worst_format"] = "first"
    """Which failing row of a group makes room."""
    max_bytes: int | None = 2_000_000_000
    """Bytes of all stored successes together; ``null`` sets no bound."""
    seed: int = 0
    """Seed of the draws; together with the training step it determines them."""
    path: str | None = None
    """File of successes that a run starts with, or resumes with in addition to its checkpoint's."""

    def __post_init__(self) -> None:
        for name in ("capacity_per_task", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"gui.replay.{name}={value}: expected at least 1")
        if self.freshness_tau is not None and not self.freshness_tau > 0:
            raise ConfigError(f"gui.replay.freshness_tau={self.freshness_tau}: expected more than 0, or null")
        if self.seed < 0:
            raise ConfigError(f"gui.replay.seed={self.seed}: expected 0 or more")


@dataclass(frozen=True)
class GuiConfig:
    """The ``gui:`` node."""

    env: EnvPoolConfig
    """The environments; see :class:`verl_gui.envs.pool_state.EnvPoolConfig`."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """How the agent looks and acts."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """What an episode is worth."""
    report: ReportConfig = field(default_factory=ReportConfig)
    """What is written down for people to look at."""

    tasks: TasksConfig = field(default_factory=TasksConfig)
    """Which tasks are trained on, how often and for how long."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Replay of successes."""

    @classmethod
    def from_config(cls, config: Any) -> GuiConfig:
        """Read ``config.gui`` from verl's configuration (OmegaConf or a plain mapping).

        Raises:
            ConfigError: unknown key, wrong type or value; names the key and what it must be.
        """
        node = config.get("gui") if hasattr(config, "get") else None
        if node is None:
            raise ConfigError("the configuration has no `gui:` node; start from one of the recipes")
        if not isinstance(node, Mapping) or type(node).__module__.startswith("omegaconf"):
            from omegaconf import OmegaConf

            node = OmegaConf.to_container(node, resolve=True)
        built = _build(cls, node, "gui")
        _check_replay(built.replay, config)
        return built


def _check_replay(replay: ReplayConfig, config: Any) -> None:
    """Refuse a replay that verl's own keys would leave without effect, or do otherwise than it says."""
    if not replay.enable:
        return
    sampler = _at(config, "trainer", "v1", "sampler", "custom_sampler")
    if sampler is not None and sampler.get("name") in (None, "GuiSampler", "GuiSamplerAsync"):
        raise ConfigError(
            "gui.replay.enable=true, but trainer.v1.sampler.custom_sampler."
            f"name={sampler.get('name')} replays nothing: set name=SuccessReplaySampler "
            "(SuccessReplaySamplerAsync in the asynchronous modes) and path=pkg://verl_gui.replay.sampler"
        )
    correction = _at(config, "algorithm", "rollout_correction")
    weights = None if correction is None else correction.get("rollout_is")
    if correction is not None and (weights is not None) != (replay.old_log_probs == "stored"):
        wanted = "rollout_is=token" if replay.old_log_probs == "stored" else "rollout_is=null"
        raise ConfigError(
            f"gui.replay.old_log_probs={replay.old_log_probs}, but algorithm.rollout_correction.rollout_is="
            f"{weights}: set algorithm.rollout_correction.{wanted}, or the other old_log_probs"
        )


def _at(config: Any, *path: str) -> Any:
    """The node of a configuration at ``path``; None where there is none."""
    for name in path:
        config = config.get(name) if hasattr(config, "get") else None
    return config


def _build(cls: type[T], data: Any, path: str) -> T:
    """Make the dataclass ``cls`` from a mapping, checking names and types on the way."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path}: expected a mapping, got {data!r}")
    hints = get_type_hints(cls)
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(str(key) for key in data if key not in known)
    if unknown:
        raise ConfigError(f"{path}.{unknown[0]}: no such key; {path} has {', '.join(sorted(known))}")
    values: dict[str, Any] = {}
    for name, value in data.items():
        kind = hints[name]
        if is_dataclass(kind) and isinstance(kind, type):
            values[name] = _build(kind, value, f"{path}.{name}")
        else:
            values[name] = _check(kind, value, f"{path}.{name}")
    try:
        return cls(**values)
    except TypeError as error:
        raise ConfigError(f"{path}: {error}") from error
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _check(kind: Any, value: Any, path: str) -> Any:
    """``value`` if it is of the annotated type (whole numbers pass as floats), else ConfigError."""
    choices = [choice for choice in (kind, *get_args(kind))]
    if "Literal" in str(kind) and not str(kind).startswith("typing.Optional"):
        if value not in get_args(kind):
            raise ConfigError(f"{path}={value!r}: expected one of {get_args(kind)}")
        return value
    for choice in choices:
        if choice is type(None) and value is None:
            return None
        if choice is bool and isinstance(value, bool):
            return value
        if choice is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if choice is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if choice is str and isinstance(value, str):
            return value
        origin = getattr(choice, "__origin__", choice)
        if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
            return dict(value)
        if isinstance(origin, type) and issubclass(origin, Sequence) and isinstance(value, list | tuple):
            return tuple(value)
    raise ConfigError(f"{path}={value!r}: expected {getattr(kind, '__name__', kind)}")
