"""The report in a real browser: it opens without an error, can be gone through, runs no foreign script."""

from dataclasses import replace

import pytest
from headless import Browser

from verl_gui.report import build_report
from verl_gui.rollout.trajectory import TrajectoryWriter, read_trajectories

pytestmark = pytest.mark.desktop

ANSWERS = "[...document.querySelectorAll('.strip button')]"
ENTRIES = "[...document.querySelectorAll('.entry')]"
ROWS = "[...document.querySelectorAll('tbody tr')]"
CURRENT = ".findIndex(b => b.getAttribute('aria-current') === 'true')"


@pytest.fixture
def browser(tmp_path):
    browser = Browser(tmp_path)
    yield browser
    browser.close()


def test_the_report_opens_without_an_error_and_without_a_request(browser, run_dir):
    browser.open(build_report(run_dir))
    assert browser.value("[...document.querySelectorAll('section:not([hidden])')].map(s => s.id)") == [
        "curves", "tasks", "episodes", "metrics", "setup",
    ]  # fmt: skip
    assert browser.value("document.querySelectorAll('.chart svg').length") >= 12
    assert browser.value("document.querySelectorAll('tbody tr').length") == 4
    assert (
        browser.value(
            "performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length"
        )
        == 0
    )
    assert browser.value("document.querySelector('.screen img').naturalWidth") == 224
    assert browser.complaints() == []


def test_hostile_text_stays_text(browser, run_dir, synthetic):
    browser.open(build_report(run_dir))
    for _ in range(80):
        browser.press("j")
        browser.press("ArrowRight")
    assert browser.value("document.title") == "synthetic – verl-gui report"
    assert browser.value("document.querySelectorAll('main script, img[src=x]').length") == 0
    assert "<img src=x" in browser.value("document.querySelector('tbody').textContent")
    for hidden in ("\u202e", "\u2028", "\x00", "\x1b"):
        assert hidden in synthetic.hostile and hidden not in browser.value("document.body.innerText")
    assert browser.complaints() == []


def test_a_script_that_gets_in_does_not_run(browser, run_dir):
    browser.open(build_report(run_dir))
    inject = """(() => {
        const script = document.createElement("script");
        script.textContent = "window.owned = 1";
        document.body.append(script);
        return window.owned ?? null;
    })()"""
    assert browser.value(inject) is None


def test_keys_go_through_answers_and_episodes(browser, run_dir):
    browser.open(build_report(run_dir), "#episode=30")
    state, entry = ANSWERS + CURRENT, ENTRIES + CURRENT
    assert (browser.value(entry), browser.value(state)) == (30, 0)
    browser.press("ArrowLeft")
    assert browser.value(state) == 0
    browser.press("ArrowRight")
    assert browser.value(state) == 1
    for _ in range(5):
        browser.press("ArrowRight")
    assert browser.value(state) == browser.value("document.querySelectorAll('.strip button').length") - 1
    browser.press("j")
    assert (browser.value(entry), browser.value(state)) == (31, 0)
    browser.press("k")
    browser.press("k")
    assert browser.value(entry) == 29
    assert browser.value("location.hash") == "#episode=29&turn=0"
    assert browser.complaints() == []


def test_actions_are_drawn_where_they_happened(browser, run_dir):
    browser.open(build_report(run_dir))
    data = browser.value("run.episodes.map(e => [e.task, e.kind, e.turns[0].actions])")
    number = next(i for i, (_, kind, _) in enumerate(data) if kind == "failure")
    action = data[number][2][0]
    browser.open(run_dir / "report.html", f"#episode={number}")
    ring = "['cx', 'cy'].map(n => Number(document.querySelector('.screen circle.mark').getAttribute(n)))"
    assert browser.value(ring) == [action["x"], action["y"]]
    assert "click (" in browser.value("document.querySelector('.caption').textContent")
    browser.press("ArrowRight")
    caption = browser.value("document.querySelector('.caption').textContent")
    assert "drag (30, 60) → (190, 150)" in caption and "scroll (200, 40) down × 5" in caption
    assert "ctrl + c" in caption and "“Kanesha⏎" in caption
    assert browser.value("document.querySelectorAll('.screen polygon').length") == 2


def test_choosing_a_task_filters_the_episodes_and_columns_sort(browser, run_dir):
    browser.open(build_report(run_dir))
    browser.value("document.querySelectorAll('thead th')[2].click()")
    rates = browser.value(f"{ROWS}.map(row => parseInt(row.cells[2].textContent))")
    assert rates == sorted(rates, reverse=True)
    browser.value(f"{ROWS}.find(row => row.cells[0].textContent.includes('enter-text')).click()")
    tasks = browser.value(f"[...new Set({ENTRIES}.map(entry => entry.firstElementChild.textContent))]")
    assert tasks == ["miniwob/enter-text"]
    choose = "s.value = 'success'; s.dispatchEvent(new Event('change'))"
    browser.value(f"(s => {{ {choose} }})(document.querySelectorAll('.list select')[1])")
    kinds = browser.value(f"[...new Set({ENTRIES}.map(entry => entry.className))]")
    assert kinds == ["entry success"]
    assert browser.complaints() == []


def test_tasks_of_two_runs_stand_side_by_side(browser, run_dir, tmp_path):
    other = tmp_path / "other"
    writer = TrajectoryWriter(other / "trajectories")
    for trajectory in read_trajectories(run_dir / "trajectories"):
        won = {"score": 1.0, "reward": 1.0, "env_failure": None, "outcome": "terminated"}
        task = "miniwob/new" if "dialog" in trajectory.task_id else trajectory.task_id
        writer.write(replace(trajectory, **won, task_id=task))
    browser.open(build_report(run_dir, compare=other))
    heads = browser.value("[...document.querySelectorAll('thead th')].map(head => head.textContent)")
    ours, theirs = heads.index("validation"), heads.index("validation (other)")
    assert heads[theirs + 1] == "training" and heads[theirs + 3] == "training (other)"
    cells = browser.value(f"{ROWS}.map(row => [...row.cells].map(cell => cell.textContent))")
    assert len(cells) == 5
    for row in cells:
        here, there = ("–" in row[column] for column in (ours, theirs))
        assert (here, there) == ("new" in row[0], "dialog" in row[0])
        assert there or row[theirs].replace("\u202f", "").replace(" ", "") == "100%"
    assert browser.complaints() == []


def test_dark_and_light(browser, run_dir):
    browser.open(build_report(run_dir))
    colours = {}
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        colours[scheme] = browser.value("getComputedStyle(document.body).backgroundColor")
    assert colours == {"light": "rgb(246, 247, 249)", "dark": "rgb(16, 20, 27)"}


def test_nothing_is_wider_than_a_laptop(browser, run_dir):
    browser.open(build_report(run_dir))
    width = "document.documentElement.scrollWidth"
    for screen in (1366, 1024):
        browser.call(
            "Emulation.setDeviceMetricsOverride", width=screen, height=768, deviceScaleFactor=1, mobile=False
        )
        assert browser.value(width) <= screen


def test_an_empty_run_says_so(browser, tmp_path):
    browser.open(build_report(tmp_path, tmp_path / "empty.html"))
    assert "neither metrics nor episodes" in browser.value("document.querySelector('main').textContent")
    assert browser.complaints() == []
