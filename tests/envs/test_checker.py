import pytest
from PIL import Image

from verl_gui.envs.base import EnvFailure, Observation, StepResult
from verl_gui.envs.checker import EnvCheckError, check_env
from verl_gui.envs.png import encode_png
from verl_gui.tasks.task import Task

TASK = Task(id="t", instruction="do it")


class GoodEnv:
    screen = (8, 6)

    def __init__(self):
        self.running, self.closed = False, 0

    def look(self):
        return Observation(encode_png(Image.new("RGB", self.screen)))

    def reset(self, task, *, seed=None):
        self.running = True
        return self.look()

    def step(self, actions):
        if self.closed or not self.running:
            raise EnvFailure("dead", "no episode")
        self.running = not any(action.type.is_terminal for action in actions)
        return StepResult(self.look(), not self.running)

    def evaluate(self):
        return 0.0

    def close(self):
        self.closed += 1


def test_good_environment_passes_and_is_closed():
    env = GoodEnv()
    check_env(env, TASK, 3)
    assert env.closed == 2


def broken(**methods):
    return type("Broken", (GoodEnv,), methods)()


def changing_look(self):
    self.shade = getattr(self, "shade", 0) + 1
    return Observation(encode_png(Image.new("RGB", self.screen, (self.shade, 0, 0))))


@pytest.mark.parametrize(
    "env, complaint",
    [
        (broken(screen=[8, 6]), "screen"),
        (broken(look=lambda self: Observation(b"")), "PNG"),
        (broken(look=lambda self: Observation(encode_png(Image.new("RGB", (8, 7))))), "pixels"),
        (broken(look=changing_look), "two different first screenshots"),
        (broken(evaluate=lambda self: 2.0), "float in"),
        (broken(evaluate=lambda self: None), "float in"),
        (broken(step=lambda self, actions: StepResult(self.look(), False)), "terminated must be True"),
        (
            broken(step=lambda self, actions: StepResult(self.look(), bool(actions))),
            "terminated must be False",
        ),
        (broken(step=lambda self, actions: self.look()), "StepResult"),
        (
            broken(
                step=lambda self, actions: StepResult(
                    self.look(), any(action.type.is_terminal for action in actions)
                )
            ),
            "refused",
        ),
        (broken(reset=lambda self, task, seed=None: None), "Observation"),
    ],
)
def test_broken_contract_is_named(env, complaint):
    with pytest.raises(EnvCheckError, match=complaint):
        check_env(env, TASK)
    assert env.closed


def test_missing_instruction_is_named():
    with pytest.raises(EnvCheckError, match="instruction"):
        check_env(GoodEnv(), Task(id="t"))


def test_object_without_the_methods_is_refused():
    class Nothing:
        def close(self): ...

    with pytest.raises(EnvCheckError, match="lacks screen, reset, step, evaluate"):
        check_env(Nothing(), TASK)
