"""From the words of a command line to a policy."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_gui.actions import get_grammar
from verl_gui.config import RolloutConfig
from verl_gui.envs.pool_state import EnvPoolConfig
from verl_gui.evaluation.expert_env import BACKEND as EXPERT_BACKEND
from verl_gui.evaluation.policies.base import Policy, PolicySetupError

POLICY_HELP = (
    "directory of a checkpoint (served by vLLM for the time being), URL of an OpenAI-compatible endpoint "
    "(with --model), `expert` (a script that knows the solution), `random` (clicks) or `person` (a web page)"
)


@dataclass(frozen=True)
class PolicyOptions:
    """Which policy and how it samples.

    Attributes:
        policy: see :data:`POLICY_HELP`.
        model: name of the model at an endpoint.
        api_key_variable: environment variable that holds the endpoint's key.
        temperature: 0 samples greedily. top_p: nucleus.
        request_timeout_s: longest wait for one answer. request_retries: repeats of a failed request.
        vllm_arguments: more arguments of ``vllm serve``.
        expert_grid: pixels between the coordinates that the expert uses.
        person_port: loopback port of the page at which a person plays; 0 takes a free one.
        person_timeout_s: longest wait for what the person does next.
    """

    policy: str
    model: str | None = None
    api_key_variable: str = "OPENAI_API_KEY"
    temperature: float = 1.0
    top_p: float = 1.0
    request_timeout_s: float = 120.0
    request_retries: int = 4
    vllm_arguments: tuple[str, ...] = ()
    expert_grid: int = 1
    person_port: int = 8770
    person_timeout_s: float = 900.0

    @property
    def is_endpoint(self) -> bool:
        """Whether the policy is a URL."""
        return self.policy.startswith(("http://", "https://"))

    def settings(self) -> dict[str, Any]:
        """What the results depend on, ready for JSON. Holds no secret."""
        settings: dict[str, Any] = {"policy": self.policy, "model": self.model}
        if self.policy == "expert":
            settings["expert_grid"] = self.expert_grid
        elif self.policy not in ("random", "person"):
            settings |= {"temperature": self.temperature, "top_p": self.top_p}
            if not self.is_endpoint:
                settings["policy"] = str(Path(self.policy).absolute())
        return settings


def environments_for(options: PolicyOptions, env: EnvPoolConfig) -> EnvPoolConfig:
    """The environments that the policy needs: one screen for a person, a whisper for the expert."""
    if options.policy == "person":
        return EnvPoolConfig(**{**env.__dict__, "num_envs": 1, "spares": 0})
    if options.policy != "expert":
        return env
    wrapped = {"backend": env.backend, "grid": options.expert_grid, "options": dict(env.options)}
    return EnvPoolConfig(**{**env.__dict__, "backend": EXPERT_BACKEND, "options": wrapped})


@contextlib.asynccontextmanager
async def open_policy(
    options: PolicyOptions, rollout: RolloutConfig, *, concurrency: int, directory: Path
) -> AsyncIterator[Policy]:
    """The policy, with what it needs started; ended with the block.

    Args:
        options: which one.
        rollout: grammar, prompt and window, as in training.
        concurrency: episodes at once.
        directory: takes the log of a server.

    Raises:
        PolicySetupError: it cannot be used.
    """
    with contextlib.ExitStack() as started:
        policy = _make(options, rollout, concurrency, directory, started)
        try:
            yield policy
        finally:
            await policy.close()


def _make(
    options: PolicyOptions,
    rollout: RolloutConfig,
    concurrency: int,
    directory: Path,
    started: contextlib.ExitStack,
) -> Policy:
    from verl_gui.evaluation.policies.scripted import ExpertPolicy, RandomPolicy

    if options.policy == "random":
        return RandomPolicy(rollout.grammar)
    if options.policy == "expert":
        return ExpertPolicy(rollout.grammar)
    if options.policy == "person":
        from verl_gui.evaluation.policies.person import Desk, PersonPolicy
        from verl_gui.evaluation.policies.person_page import serve

        desk = Desk(rollout.grammar)
        address = started.enter_context(serve(desk, options.person_port))
        sys.stdout.write(f"play at {address}\n")
        sys.stdout.flush()
        return PersonPolicy(desk, options.person_timeout_s)

    from verl_gui.evaluation.policies.endpoint import EndpointConfig, EndpointPolicy

    prompt = rollout.system_prompt
    if prompt is None:
        prompt = get_grammar(rollout.grammar).system_prompt(rollout.language)
    common: dict[str, Any] = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "timeout_s": options.request_timeout_s,
        "max_retries": options.request_retries,
    }
    if options.is_endpoint:
        if not options.model:
            raise PolicySetupError("an endpoint needs --model, the name of the model there")
        key = os.environ.get(options.api_key_variable) or "none"
        config = EndpointConfig(options.policy, options.model, api_key=key, **common)
        return EndpointPolicy(config, rollout, prompt)

    checkpoint = Path(options.policy)
    if not (checkpoint / "config.json").is_file():
        raise PolicySetupError(
            f"{options.policy!r} is no checkpoint (no config.json in it); give a {POLICY_HELP}"
        )
    from verl_gui.evaluation.policies.checkpoint import VllmServer, frame_of, processor_of, unsampled

    processor = processor_of(checkpoint)
    server = VllmServer(
        checkpoint,
        rollout,
        concurrency=concurrency,
        arguments=options.vllm_arguments,
        log=directory / "vllm.log",
    )
    started.callback(server.stop)
    # In this thread: a process told to die with its parent dies with the thread that started it.
    server.start()
    extra = {"skip_special_tokens": False, "logit_bias": unsampled(processor)}
    config = EndpointConfig(server.base_url, "policy", extra=extra, **common)
    return EndpointPolicy(config, rollout, prompt, frame_of(processor, rollout))
