"""The page on which a person plays, in a real browser: real clicks, keys and wheel turns."""

import time

import pytest
from headless import Browser
from in_process import png

from verl_gui.evaluation.policies.person import Desk, Turn
from verl_gui.evaluation.policies.person_page import serve
from verl_gui.rollout.episode import Episode
from verl_gui.tasks import Task

pytestmark = pytest.mark.desktop
SCREEN = (400, 300)


@pytest.fixture
def browser(tmp_path):
    browser = Browser(tmp_path)
    yield browser
    browser.close()


class Player:
    """A browser at a desk."""

    def __init__(self, browser: Browser, desk: Desk) -> None:
        self.browser, self.desk, self.steps = browser, desk, 0

    def shown(self) -> Turn:
        """Put the next screenshot on the desk and wait until the page shows it."""
        episode = Episode(Task("t"), f"task {self.steps}", SCREEN, SCREEN)
        turn = self.desk.put(episode, png(self.steps, SCREEN))
        until = time.monotonic() + 10
        ready = f"document.body.className === '' && turn === {turn.number} && screenImage.complete"
        while not self.browser.value(ready):
            assert time.monotonic() < until, "the page does not show the screenshot"
            time.sleep(0.02)
        self.steps += 1
        return turn

    def mouse(self, kind: str, x: int, y: int, **more: object) -> None:
        box = self.browser.value("screenImage.getBoundingClientRect()")
        scale = box["width"] / SCREEN[0]
        at = {"x": box["x"] + (x + 0.5) * scale, "y": box["y"] + (y + 0.5) * scale}
        self.browser.call("Input.dispatchMouseEvent", type=kind, **at, **more)

    def click(self, x: int, y: int, button: str = "left", count: int = 1) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button=button, clickCount=count)


def test_everything_a_person_can_do(browser):
    desk = Desk("uitars")
    player = Player(browser, desk)
    with serve(desk, 0) as address:
        browser.open(address)

        def said(do) -> str:
            turn = player.shown()
            do()
            return turn.answer.result(10).partition("Action: ")[2]

        assert said(lambda: player.click(40, 30)) == "click(start_box='(40,30)')"
        assert said(lambda: player.click(50, 60, "right")) == "right_single(start_box='(50,60)')"

        def double() -> None:
            player.click(7, 8)
            player.click(7, 8, count=2)

        assert said(double) == "left_double(start_box='(7,8)')"

        def drag() -> None:
            player.mouse("mousePressed", 10, 20, button="left", clickCount=1)
            player.mouse("mouseMoved", 100, 90, button="left")
            player.mouse("mouseReleased", 200, 150, button="left", clickCount=1)

        assert said(drag) == "drag(start_box='(10,20)', end_box='(200,150)')"
        assert "direction='down'" in said(lambda: player.mouse("mouseWheel", 5, 5, deltaX=0, deltaY=120))

        def fill(field: str, text: str, button: str) -> None:
            browser.value(f"(byId({field!r}).value = {text!r}, byId({button!r}).click(), null)")

        assert said(lambda: fill("text", "a'b", "enter")) == r"type(content='a\'b\n')"
        assert said(lambda: fill("keys", "Ctrl+Shift+t", "press")) == "hotkey(key='ctrl shift t')"
        assert said(lambda: fill("thought", "hm", "wait")) == "wait()"
        assert said(lambda: fill("text", "42", "finished")) == "finished(content='42')"

        turn = player.shown()
        fill("keys", "nokey", "press")
        until = time.monotonic() + 10
        while "nokey" not in browser.value("said.textContent"):
            assert time.monotonic() < until
            time.sleep(0.02)
        assert desk.turn is turn
        assert [line for line in browser.complaints() if "422" not in line] == []
