import io
import os
import random
import signal
import time

import psutil
import pytest
from desktop_tools import directories_of, family, footprint, gone, run_and_kill, wait_until, x_leftovers
from env_cases import cases
from PIL import Image, ImageChops

from verl_gui.actions import Action, ActionType
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.checker import check_env
from verl_gui.envs.miniwob import ORACLES, MiniwobEnv, elements, oracle, task_names
from verl_gui.tasks.task import Task

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(300)]


def task(name):
    return Task(id=f"miniwob:{name}")


def click(x, y):
    return Action(ActionType.CLICK, x=x, y=y)


def picture(observation):
    return Image.open(io.BytesIO(observation.screenshot)).convert("RGB")


@pytest.fixture(scope="module")
def env():
    env = MiniwobEnv((168, 224))
    yield env
    env.close()


def play(env, name, seed, rng=None, turns=12):
    observation = env.reset(task(name), seed=seed)
    for _ in range(turns):
        result = env.step(oracle(env, rng))
        observation = result.observation
        if result.terminated:
            break
    return observation


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_expert_solves(env, name):
    for seed in range(6):
        play(env, name, seed, random.Random(seed) if seed % 2 else None)
        assert env.evaluate() == 1.0, (name, seed)


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_equal_seeds_look_equal_whatever_was_before(env, name):
    first = {seed: env.reset(task(name), seed=seed) for seed in range(5)}
    for seed in range(5):
        play(env, name, seed, turns=2)
    play(env, "click-tab", 99)
    for seed, before in first.items():
        again = env.reset(task(name), seed=seed)
        assert again.info == before.info
        assert ImageChops.difference(picture(again), picture(before)).getbbox() is None, (name, seed)
    assert len({observation.screenshot for observation in first.values()}) > 1


def test_seeds_that_repeat_their_digits_differ(env):
    shots = {env.reset(task("click-test"), seed=seed).screenshot for seed in (1, 11, 111)}
    assert len(shots) == 3


def test_contract():
    check_env(MiniwobEnv((168, 224)), task("click-dialog-2"), 3)


@pytest.mark.parametrize(
    "scale, screen", [(1, (160, 210)), (1.5, (252, 336)), (2, (336, 448)), (1, (500, 400))]
)
def test_clicks_land_where_the_picture_shows(scale, screen):
    env = MiniwobEnv(screen, scale)
    try:
        for name in ("click-color", "click-shape", "focus-text-2", "enter-text"):
            observation = play(env, name, 4)
            assert env.evaluate() == 1.0
            assert picture(observation).size == screen
        area = picture(env.reset(task("click-test"), seed=1))
        assert area.getpixel((1, 1)) == (255, 255, 0)  # the query on top
        if screen[0] > 160 * scale:
            right = area.crop((round(160 * scale) + 1, 0, screen[0], screen[1] - 20))
            assert right.getcolors() == [(right.width * right.height, (85, 85, 85))]
    finally:
        env.close()


def test_boxes_of_elements_are_screen_pixels(env):
    observation = env.reset(task("click-color"), seed=8)
    image = picture(observation)
    colors = [element for element in elements(env) if element["kind"] == "color"]
    assert len(colors) == 4
    for element in colors:
        x0, y0, x1, y1 = element["box"]
        pixel = image.getpixel((round((x0 + x1) / 2), round((y0 + y1) / 2)))
        if element["text"] in ("red", "lime", "blue", "black", "white", "yellow"):
            named = {"red": (255, 0, 0), "lime": (0, 255, 0), "blue": (0, 0, 255), "black": (0, 0, 0),
                     "white": (255, 255, 255), "yellow": (255, 255, 0)}  # fmt: skip
            assert pixel == named[element["text"]]


def test_wrong_click_ends_the_episode_without_reward(env):
    env.reset(task("click-test-2"), seed=3)
    two = next(element for element in elements(env) if element["text"] == "TWO")
    result = env.step([click(*two["spot"])])
    assert result.terminated and result.info["page_done"] and env.evaluate() == 0.0


def test_partial_reward_is_kept(env):
    env.reset(task("click-checkboxes"), seed=2)
    boxes = env.script("document.querySelectorAll('#boxes input').length")
    wanted = env.script("core.getUtterance()")[len("Select ") : -len(" and click Submit.")].split(", ")
    submit = next(element for element in elements(env) if element["text"] == "Submit")
    env.step([click(*submit["spot"])])
    wrong = 0 if wanted == ["nothing"] else len(wanted)
    assert env.evaluate() == pytest.approx(max(0.0, (boxes - 2 * wrong) / boxes))


def test_end_shows_neither_reward_nor_next_episode(env):
    observation = env.reset(task("click-test"), seed=5)
    before = picture(observation)
    won = env.step(oracle(env))
    again = env.reset(task("click-test"), seed=6)
    assert again.screenshot != observation.screenshot
    # Apart from the pressed button and the pointer nothing has changed: same query, same background.
    after = picture(won.observation)
    assert ImageChops.difference(before.crop((0, 0, 168, 50)), after.crop((0, 0, 168, 50))).getbbox() is None
    assert env.script("getComputedStyle(document.querySelector('#sync-task-cover')).display") == "none"
    assert env.script("getComputedStyle(document.querySelector('#reward-display')).display") == "none"


def test_clicks_after_the_end_start_nothing(env):
    env.reset(task("click-test"), seed=5)
    button = next(element for element in elements(env) if element["kind"] == "button")["spot"]
    result = env.step([click(*button), click(80, 120), click(80, 120), click(*button)])
    assert result.terminated and env.evaluate() == 1.0
    with pytest.raises(RuntimeError, match="reset"):
        env.step([])


def test_no_time_out(env):
    env.reset(task("click-test"), seed=5)
    assert env.script("core.EPISODE_MAX_TIME") >= 1e8
    time.sleep(1.2)
    assert not env.step([]).terminated


@pytest.mark.parametrize("kind", [ActionType.FINISHED, ActionType.FAIL, ActionType.CALL_USER])
def test_terminal_action_ends_an_unsolved_episode_with_zero(env, kind):
    env.reset(task("click-test"), seed=5)
    result = env.step([Action(kind)])
    assert result.terminated and not result.info["page_done"] and env.evaluate() == 0.0


def test_text_reaches_the_field_and_the_picture(env):
    env.reset(task("enter-text"), seed=1)
    field = next(element for element in elements(env) if element["kind"] == "text")
    before = picture(env.step([click(*field["spot"])]).observation)
    after = picture(env.step([Action(ActionType.TYPE, text="Hello <3 {x}")]).observation)
    assert env.script("document.querySelector('#tt').value") == "Hello <3 {x}"
    changed = ImageChops.difference(before, after).getbbox()
    assert changed and changed[1] >= field["box"][1] - 1 and changed[3] <= field["box"][3] + 1


@cases("typing")
def test_shared_cases_of_typing(env, case):
    env.reset(task("enter-text"), seed=1)
    field = next(element for element in elements(env) if element["kind"] == "text")
    env.step([click(*field["spot"])])
    env.step([Action(ActionType.TYPE, text=case["text"] + "\n" * case.get("enter", 0))])
    assert env.script("document.querySelector('#tt').value") == case["expect"]


def test_pause_stops_the_browser_and_the_next_call_wakes_it(env):
    env.reset(task("click-test"), seed=3)
    env.pause()
    browser = psutil.Process(main_process(env).pid)
    assert wait_until(lambda: browser.status() == psutil.STATUS_STOPPED)
    play(env, "click-test", 4)
    assert env.evaluate() == 1.0
    env.pause()
    assert env.evaluate() == 1.0


def test_screenshot_after_a_step_is_final(env):
    env.reset(task("click-checkboxes"), seed=6)
    for element in [element for element in elements(env) if element["kind"] == "checkbox"] * 8:
        shot = env.step([click(*element["spot"])]).observation
        time.sleep(0.15)
        assert env.step([]).observation.screenshot == shot.screenshot


@pytest.mark.parametrize(
    "keys",
    [("ctrl", key) for key in ("w", "t", "r", "p", "=")]
    + [("f5",), ("f11",), ("alt", "left"), ("alt", "f4"), ("ctrl", "shift", "i")],
)
def test_commands_of_the_browser_do_nothing(env, keys):
    observation = env.reset(task("click-test-2"), seed=9)
    result = env.step([Action(ActionType.HOTKEY, keys=keys)])
    assert not result.terminated
    assert result.observation.screenshot == observation.screenshot
    env.step(oracle(env))
    assert env.evaluate() == 1.0


def test_other_buttons_open_nothing(env):
    env.reset(task("click-link"), seed=9)
    link = next(element for element in elements(env) if element["kind"] == "link")["spot"]
    hover = env.step([Action(ActionType.HOVER, x=link[0], y=link[1])]).observation
    for kind in (ActionType.RIGHT_SINGLE, ActionType.MIDDLE):
        result = env.step([Action(kind, x=link[0], y=link[1])])
        assert not result.terminated
        assert ImageChops.difference(picture(result.observation), picture(hover)).getbbox() is None
    play(env, "click-link", 9)
    assert env.evaluate() == 1.0


def test_page_that_the_agent_leaves_ends_with_zero(env):
    env.reset(task("click-test"), seed=5)
    env.script("void setTimeout(() => location.href = 'about:blank')")
    time.sleep(0.5)
    assert env.step([]).terminated and env.evaluate() == 0.0
    play(env, "click-test", 5)
    assert env.evaluate() == 1.0


def test_held_keys_and_buttons_do_not_reach_the_next_episode(env):
    env.reset(task("enter-text"), seed=1)
    env.step([Action(ActionType.KEY_DOWN, keys=("shift",))])
    play(env, "enter-text", 2)
    assert env.evaluate() == 1.0


def test_unknown_task_is_the_callers_fault(env):
    for name in ("miniwob:no-such-page", "click-test", "miniwob:../core/core"):
        with pytest.raises(ValueError, match="unknown task"):
            env.reset(Task(id=name))


def test_every_page_starts(env):
    names = sorted(task_names())
    assert len(names) == 130
    for name in names[::7]:
        assert env.reset(task(name), seed=1).info["instruction"] is not None


def test_screen_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="160x210"):
        MiniwobEnv((168, 224), 2)


def test_page_has_neither_network_nor_files_of_the_host(env, tmp_path):
    env.reset(task("click-test"), seed=1)
    assert env.script("fetch('http://127.0.0.1:8265/').then(() => 'reached', () => 'refused')") == "refused"
    secret = tmp_path / "secret"
    secret.write_text("treasure")
    assert env.script(f"fetch('file://{secret}').then(r => r.text(), () => 'refused')") == "refused"


@pytest.mark.parametrize("sandbox", ["bwrap", "none"])
def test_nothing_is_left_after_close(sandbox):
    MiniwobEnv((168, 224)).close()  # whatever is made once a process is there now
    before = footprint()
    env = MiniwobEnv((168, 224), sandbox=sandbox)
    play(env, "click-test", 1)
    assert env.evaluate() == 1.0
    display = env._xserver.display
    env.close()
    env.close()
    assert footprint() == before and not x_leftovers(display)
    with pytest.raises(EnvFailure, match="closed"):
        env.reset(task("click-test"))


# -- faults ----------------------------------------------------------------------------------------------


def renderer(env):
    children = psutil.Process(env._browser.pid).children(recursive=True)
    return next(child for child in children if "--type=renderer" in child.cmdline())


def main_process(env):
    children = psutil.Process(env._browser.pid).children(recursive=True)
    browsers = [child for child in children if child.name().startswith("chrom")]
    return next(child for child in browsers if not any("--type" in word for word in child.cmdline()))


@pytest.fixture
def fragile():
    env = MiniwobEnv((168, 224), call_timeout_s=3.0)
    env.reset(task("click-test"), seed=1)
    yield env
    env.close()


@pytest.mark.parametrize(
    "victim, number, kinds",
    [
        ("xserver", signal.SIGKILL, {"dead"}),
        ("browser", signal.SIGKILL, {"dead"}),
        ("renderer", signal.SIGKILL, {"dead"}),
        ("browser", signal.SIGSTOP, {"timeout"}),
        ("renderer", signal.SIGSTOP, {"timeout"}),
        ("xserver", signal.SIGSTOP, {"dead", "timeout"}),
    ],
)
def test_faults_are_typed_bounded_and_repaired(fragile, victim, number, kinds):
    pid = {"xserver": lambda: fragile._xserver.process.pid, "browser": lambda: main_process(fragile).pid,
           "renderer": lambda: renderer(fragile).pid}[victim]()  # fmt: skip
    os.kill(pid, number)
    time.sleep(0.3)
    start = time.monotonic()
    with pytest.raises(EnvFailure) as failure:
        fragile.step([click(5, 5)])
        fragile.step([click(5, 5)])
    assert failure.value.kind in kinds
    assert time.monotonic() - start < 40
    play(fragile, "click-test", 1)
    assert fragile.evaluate() == 1.0
    assert wait_until(lambda: gone(pid))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_everything_dies_with_us(number):
    code = """
import json
from verl_gui.envs.miniwob import MiniwobEnv
from verl_gui.tasks.task import Task
env = MiniwobEnv((168, 224))
env.reset(Task(id="miniwob:click-test"), seed=1)
print(json.dumps(env._xserver.display), flush=True)
"""
    display, pid, descendants = run_and_kill(code, number)
    assert len(descendants) > 3
    assert wait_until(lambda: all(gone(pid) for pid in descendants))
    assert wait_until(lambda: not x_leftovers(display))
    assert not family() & descendants
    if number == signal.SIGKILL:
        MiniwobEnv((168, 224)).close()  # whoever comes next tidies up
    assert directories_of(pid) == []
