"""Command-line options that all commands share which run a policy on tasks."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_gui.evaluation.runs import Run
    from verl_gui.tasks.sources import TaskInstance


def add_run_options(parser: argparse.ArgumentParser, *, runs: int, policy: str | None = None) -> None:
    """Declare them.

    Args:
        runs: default number of runs of each task.
        policy: default policy; None makes ``--policy`` obligatory.
    """
    from verl_gui.evaluation.policies.spec import POLICY_HELP

    parser.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="tasks; see `verl-gui tasks list --help`"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="directory of the results; go on where it ends"
    )
    if policy is None:
        parser.add_argument("--policy", required=True, help=POLICY_HELP)
    else:
        parser.set_defaults(policy=policy)
    parser.add_argument(
        "--runs", type=_positive, default=runs, metavar="K", help=f"valid runs of each task ({runs})"
    )
    parser.add_argument("--config", type=Path, metavar="YAML", help="recipe whose `gui:` node is used")
    parser.add_argument(
        "--set", action="append", default=[], metavar="gui.KEY=VALUE", help="change one key; may be repeated"
    )
    parser.add_argument("--num-envs", type=_positive, metavar="N", help="environments (gui.env.num_envs)")
    parser.add_argument(
        "--max-steps", type=_positive, metavar="N", help="answers of an episode (gui.rollout.max_steps)"
    )
    parser.add_argument("--retries", type=_natural, default=2, help="repeats of a run that was invalid (2)")
    parser.add_argument("--seed", type=int, default=0, help="of the policy's chance (0)")
    parser.add_argument("--record", action="store_true", help="write trajectories to OUT/trajectories")
    parser.add_argument("--model", metavar="NAME", help="name of the model at an endpoint")
    parser.add_argument(
        "--api-key-variable",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="environment variable with the endpoint's key (OPENAI_API_KEY)",
    )
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (1.0)")
    parser.add_argument("--top-p", type=float, default=1.0, help="nucleus sampling (1.0)")
    parser.add_argument(
        "--request-timeout", type=float, default=120.0, metavar="S", help="of one answer (120)"
    )
    parser.add_argument("--request-retries", type=_natural, default=4, help="repeats of a failed request (4)")
    parser.add_argument(
        "--vllm-args", default="", metavar="ARGS", help="more arguments of `vllm serve`, in one string"
    )
    parser.add_argument(
        "--person-port", type=_natural, default=8770, metavar="PORT", help="of the page for a person (8770)"
    )
    parser.add_argument(
        "--person-timeout", type=float, default=900.0, metavar="S", help="longest wait for a person (900)"
    )
    parser.add_argument("--expert-grid", type=_positive, default=1, help=argparse.SUPPRESS)


def policy_options(options: argparse.Namespace) -> Any:
    """The parsed options as :class:`verl_gui.evaluation.policies.PolicyOptions`."""
    from verl_gui.evaluation.policies import PolicyOptions

    return PolicyOptions(
        policy=options.policy,
        model=options.model,
        api_key_variable=options.api_key_variable,
        temperature=options.temperature,
        top_p=options.top_p,
        request_timeout_s=options.request_timeout,
        request_retries=options.request_retries,
        vllm_arguments=tuple(shlex.split(options.vllm_args)),
        expert_grid=options.expert_grid,
        person_port=options.person_port,
        person_timeout_s=options.person_timeout,
    )


class Refused(RuntimeError):
    """A command cannot go on; the message is for the person who gave it.

    Attributes:
        status: exit status of the command.
    """

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


def run_all(options: argparse.Namespace, label: str) -> tuple[list[TaskInstance], list[Run]]:
    """Do what the options ask for.

    Returns:
        The task instances and all runs.

    Raises:
        Refused: tasks, configuration, policy or directory cannot be used, nothing works, or Ctrl-C.
    """
    try:
        return _run_all(options, label)
    except refusals() as error:
        raise Refused(str(error)) from error
    except KeyboardInterrupt:
        raise Refused(f"interrupted; the same command goes on where {options.out} ends", 130) from None


def _run_all(options: argparse.Namespace, label: str) -> tuple[list[TaskInstance], list[Run]]:
    from verl_gui.evaluation.engine import RunSettings
    from verl_gui.evaluation.session import load_gui_config, run_session
    from verl_gui.tasks import expand_sources

    instances = expand_sources(options.sources)
    overrides = list(options.set)
    if options.num_envs is not None:
        overrides.append(f"gui.env.num_envs={options.num_envs}")
    if options.max_steps is not None:
        overrides.append(f"gui.rollout.max_steps={options.max_steps}")
    gui = load_gui_config(options.config, overrides, instances)
    settings = RunSettings(
        k=options.runs,
        retries=options.retries,
        seed=options.seed,
        rollout=gui.rollout,
        reward=gui.reward,
        record=options.record,
    )
    runs = run_session(instances, policy_options(options), gui, settings, options.out, label=label)
    return instances, runs


def refusals() -> tuple[type[Exception], ...]:
    """The errors that a command answers with one line and exit status 2 instead of a traceback."""
    from verl_gui.config import ConfigError
    from verl_gui.evaluation.engine import EvaluationStopped
    from verl_gui.evaluation.policies import PolicySetupError
    from verl_gui.evaluation.runs import ResultsError
    from verl_gui.evaluation.session import SessionError
    from verl_gui.tasks import TaskFormatError

    return ConfigError, EvaluationStopped, PolicySetupError, ResultsError, SessionError, TaskFormatError


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return number


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, got {text}")
    return number
