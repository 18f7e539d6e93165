import random
from statistics import fmean, pstdev

import numpy as np

from verl_gui.actions import ActionType, parse
from verl_gui.warmstart.behaviour_cloning import Demonstration
from verl_gui.warmstart.clumsy_expert import give_up, shake

FRAME = (168, 224)


def demo(x=84, y=112):
    frame = np.zeros((FRAME[1], FRAME[0], 3), dtype=np.uint8)
    answers = [
        f"Thought: button\nAction: click(start_box='({x},{y})')",
        "Thought: text\nAction: type(content='Ann')",
    ]
    return Demonstration("Click.", [frame, frame], answers, [(x, y), None], [[], []])


def aims(demonstration, sigma, n=2000):
    rng = random.Random(0)
    for _ in range(n):
        shaken = shake(demonstration, rng, sigma=sigma)
        response = parse(shaken.answers[0], grammar="uitars", frame=FRAME, screen=FRAME)
        yield response.actions[0].x, response.actions[0].y


def test_the_aim_spreads_around_the_target_on_the_grid():
    xs, ys = zip(*aims(demo(), sigma=14), strict=True)
    for values, target in (xs, 84), (ys, 112):
        assert abs(fmean(values) - target) < 1.5 and 12 < pstdev(values) < 16
        assert all(value % 7 == 0 for value in values)


def test_words_targets_and_other_answers_stay():
    shaken = shake(demo(), random.Random(1), sigma=30)
    assert shaken.targets == demo().targets and shaken.answers[1] == demo().answers[1]
    assert shaken.answers[0].startswith("Thought: button\nAction: click(start_box='(")
    assert shaken.answers[0] != demo().answers[0]


def test_a_shaken_aim_stays_on_the_screen():
    for x, y in (0, 0), (161, 217):
        assert all(0 <= ax < 168 and 0 <= ay < 224 for ax, ay in aims(demo(x, y), sigma=60, n=300))


def test_a_steady_hand_changes_nothing():
    assert shake(demo(), random.Random(0), sigma=0).answers == demo().answers


def test_it_gives_up_at_any_turn_and_says_nothing_after():
    rng = random.Random(0)
    lengths = [0, 0]
    for _ in range(1000):
        given_up = give_up(demo(), rng, probability=0.5)
        turns = len(given_up.answers)
        assert turns == len(given_up.frames) == len(given_up.targets) == len(given_up.elements)
        last = parse(given_up.answers[-1], grammar="uitars", frame=FRAME, screen=FRAME)
        if last.actions[0].type is ActionType.FINISHED:
            assert given_up.targets[-1] is None and given_up.answers[:-1] == demo().answers[: turns - 1]
            lengths[turns - 1] += 1
        else:
            assert given_up.answers == demo().answers
    assert 450 < lengths[0] < 550 and 200 < lengths[1] < 300


def test_it_never_gives_up_with_probability_zero():
    assert give_up(demo(), random.Random(0), probability=0.0).answers == demo().answers
