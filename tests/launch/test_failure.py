"""Which of many errors in a log is named."""

import pytest

from verl_gui.launch.failure import first_cause

WORKER = "\x1b[36m(WorkerDict pid=41)\x1b[0m "
ENGINE = "(vLLMHttpServer pid=42, ip=10.0.0.1) (EngineCore_DP0 pid=77) ERROR 07-01 12:00:00 [core.py:999] "

IN_A_WORKER = f"""\
(TaskRunnerV1 pid=40) Training Progress:   0%|          | 0/10
{WORKER}Traceback (most recent call last):
{WORKER}  File "/site/verl/workers/engine.py", line 12, in update
{WORKER}    return self.step(batch)
(TaskRunnerV1 pid=40) something else in between
{WORKER}  File "/site/verl/workers/fsdp.py", line 99, in step
{WORKER}    raise ValueError("shape (3, 4) is wrong")
{WORKER}ValueError: shape (3, 4) is wrong
Error executing job with overrides: ['a=b']
Traceback (most recent call last):
  File "/site/verl/trainer/main_ppo.py", line 30, in main
    run_ppo(config)
  File "/site/ray/worker.py", line 5, in get
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(ValueError): ray::TaskRunnerV1.run() (pid=40, ip=10.0.0.1)
  File "/site/verl/trainer/main_ppo.py", line 130, in run
    self.trainer.fit()
ray.exceptions.RayTaskError(ValueError): ray::WorkerDict.update() (pid=41, ip=10.0.0.1)
  File "/site/verl/workers/fsdp.py", line 99, in step
    raise ValueError("shape (3, 4) is wrong")
ValueError: shape (3, 4) is wrong

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
(raylet) 3 workers have died [repeated 2x across cluster]
"""

IN_THE_ENGINE = f"""\
{ENGINE}EngineCore failed to start.
{ENGINE}Traceback (most recent call last):
{ENGINE}  File "/site/vllm/v1/engine/core.py", line 7, in run_engine_core
{ENGINE}    engine_core = EngineCoreProc(*args)
{ENGINE}  File "/site/vllm/v1/worker.py", line 88, in load
{ENGINE}    raise torch.OutOfMemoryError
{ENGINE}torch.OutOfMemoryError: 20 GiB
(vLLMHttpServer pid=42) Traceback (most recent call last):
(vLLMHttpServer pid=42)   File "/site/vllm/v1/engine/utils.py", line 1, in wait
(vLLMHttpServer pid=42) RuntimeError: Engine core initialization failed. See root cause above.
Traceback (most recent call last):
  File "/site/verl/trainer/main_ppo.py", line 30, in main
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
"""

A_HARMLESS_ONE_FIRST = f"""\
{WORKER}Traceback (most recent call last):
{WORKER}  File "/site/optional.py", line 1, in <module>
{WORKER}ModuleNotFoundError: No module named 'optional'
{WORKER}going on without it
Traceback (most recent call last):
  File "/here/train.py", line 3, in main
    check(config)
KeyError: 'actor'
"""

HYDRA = """\
Could not override 'trainer.foo'.
To append to your config use +trainer.foo=1
Key 'foo' is not in struct
    full_key: trainer.foo

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""

ONLY_ECHOES = """\
Traceback (most recent call last):
  File "/here/train.py", line 3, in main
ray.exceptions.ActorDiedError: The actor died unexpectedly
"""


@pytest.mark.parametrize(
    "log, error, source, where",
    [
        (IN_A_WORKER, "ValueError: shape (3, 4) is wrong", "WorkerDict pid=41", "fsdp.py:99 in step"),
        (IN_THE_ENGINE, "torch.OutOfMemoryError: 20 GiB", "EngineCore_DP0 pid=77", "worker.py:88 in load"),
        (A_HARMLESS_ONE_FIRST, "KeyError: 'actor'", "", "train.py:3 in main"),
        (HYDRA, "Could not override 'trainer.foo'.", "", ""),
        (ONLY_ECHOES, "ray.exceptions.ActorDiedError: The actor died unexpectedly", "", "train.py:3 in main"),
        ("loading\nbash: line 1: foo: command not found\n", "bash: line 1: foo: command not found", "", ""),
    ],
    ids=["worker", "engine", "harmless", "hydra", "echoes", "shell"],
)  # fmt: skip
def test_the_cause_is_found(log, error, source, where):
    failure = first_cause(log.splitlines())
    assert failure is not None
    assert (failure.error, failure.source) == (error, source)
    assert failure.where.endswith(where) and bool(failure.where) == bool(where)


@pytest.mark.parametrize(
    "raised, shown",
    [
        ("raise SystemExit(3)", None),
        ("import json; json.loads('{')", "json.decoder.JSONDecodeError: Expecting property name"),
        ("class TaskFailed(Exception): pass\nraise TaskFailed", "TaskFailed"),
        (
            "try:\n  1/0\nexcept ZeroDivisionError as e:\n  raise LookupError('later') from e",
            "LookupError: later",
        ),
    ],
)
def test_real_tracebacks(raised, shown):
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", raised], capture_output=True, text=True, timeout=60)
    failure = first_cause(done.stderr.splitlines())
    if shown is None:
        assert failure is None
    else:
        assert failure.error.removeprefix("__main__.").startswith(shown)


def test_an_empty_or_quiet_log_has_no_cause():
    assert first_cause([]) is None
    assert first_cause(["all is well", "step 1"]) is None


def test_hostile_lines_do_not_matter():
    lines = [
        "Traceback (most recent call last):",
        "\x1b[31m" * 1000,
        "(" * 5000,
        "(x pid=1) " * 2000,
        "\ufffd\0",
    ]
    assert first_cause(lines) is None
