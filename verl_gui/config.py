"""Everything that is configured under ``gui:``, one dataclass a node, one sentence a key.

Recipes add the node to verl's own configuration; :meth:`GuiConfig.from_config` checks it once, at start.
"""

from __future__ import annotations

from collections.abc import Mapping
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

    def __post_init__(self) -> None:
        for name in ("train_every", "validate_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"gui.report.{name}={getattr(self, name)}: expected at least 1")


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
        return _build(cls, node, "gui")


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
    raise ConfigError(f"{path}={value!r}: expected {getattr(kind, '__name__', kind)}")
