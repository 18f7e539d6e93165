import io
import json
import os
import random
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from PIL import Image

from verl_gui.report import build_plot, build_report
from verl_gui.report.episodes import kind, survey
from verl_gui.report.pictures import PictureBook
from verl_gui.report.plot import spread
from verl_gui.rollout.trajectory import read_trajectories


class Page(HTMLParser):
    """Tags and data block of a report."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.data = ""
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._inside = dict(attrs).get("id") == "data"

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.data += data

    @property
    def content(self):
        return json.loads(self.data, parse_constant=lambda name: pytest.fail(f"{name} in the data"))


def test_a_run_becomes_one_page_without_a_foreign_address(run_dir, synthetic):
    path = build_report(run_dir)
    text = path.read_text(encoding="utf-8")
    content = Page(text).content
    assert path == run_dir / "report.html"
    assert content["summary"]["steps"] == 24
    assert content["summary"]["validation"] == pytest.approx([0.15, 0.95])
    assert {task["task"] for task in content["tasks"]} == set(synthetic.tasks)
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
    assert len(content["episodes"]) == 80 and content["recorded"] == 144


def test_hostile_text_adds_no_element(run_dir, synthetic, tmp_path):
    calm = Page(build_report(tmp_path, tmp_path / "empty.html").read_text(encoding="utf-8"))
    page = Page(build_report(run_dir).read_text(encoding="utf-8"))
    assert page.tags == calm.tags
    assert any(
        turn["text"] == synthetic.hostile for episode in page.content["episodes"] for turn in episode["turns"]
    )


def test_a_hostile_directory_name_is_escaped(tmp_path):
    directory = tmp_path / "<img src=x onerror=alert(1)>&{{DATA}}"
    directory.mkdir()
    page = Page(build_report(directory).read_text(encoding="utf-8"))
    assert "img" not in page.tags and page.content["name"] == directory.name


def test_an_empty_run_has_a_report(tmp_path):
    content = Page(build_report(tmp_path).read_text()).content
    assert (content["charts"], content["tasks"], content["episodes"]) == ([], [], [])


def test_foreign_run_files_do_no_harm(tmp_path):
    (tmp_path / "run.json").write_text('["not", "facts"]')
    assert Page(build_report(tmp_path).read_text()).content["run"] == {}
    (tmp_path / "run.json").write_bytes(b"\xff{")
    assert Page(build_report(tmp_path).read_text()).content["run"] == {}


def test_secrets_are_not_shown(run_dir):
    hydra = run_dir / "hydra" / ".hydra"
    hydra.mkdir(parents=True)
    (hydra / "config.yaml").write_text(
        "trainer:\n  nnodes: 1\nwandb:\n  api_key: s3cr3t\n  HF_TOKEN: s3cr3t\n"
    )
    text = build_report(run_dir).read_text(encoding="utf-8")
    assert "s3cr3t" not in text and "nnodes: 1" in text


def test_a_report_is_replaced_as_a_whole(run_dir, monkeypatch):
    path = build_report(run_dir)
    before = path.read_bytes()
    monkeypatch.setattr("verl_gui.report.build._json", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_report(run_dir)
    assert path.read_bytes() == before


def test_every_task_and_ending_is_shown_early_and_late(run_dir):
    everything = list(read_trajectories(run_dir / "trajectories"))
    present = {(t.task_id, kind(t)) for t in everything}
    content = Page(build_report(run_dir, max_trajectories=2 * len(present)).read_text()).content
    assert {(e["task"], e["kind"]) for e in content["episodes"]} == present
    first_task = content["tasks"][0]["task"]
    steps = [e["step"] for e in content["episodes"] if e["task"] == first_task and e["kind"] == "success"]
    wins = [t.global_step for t in everything if t.task_id == first_task and kind(t) == "success"]
    assert {min(wins), max(wins)} <= set(steps)
    order = [(e["task"], e["step"]) for e in content["episodes"]]
    assert all(one <= other for one, other in pairwise(order))


def test_task_statistics_count_attempts_not_broken_episodes(run_dir):
    look = survey(run_dir / "trajectories", 10)
    everything = list(read_trajectories(run_dir / "trajectories", with_screenshots=lambda _: False))
    for task_id, statistics in look.tasks.items():
        own = [t for t in everything if t.task_id == task_id]
        broken = sum(t.env_failure is not None for t in own)
        row = statistics.to_json()
        assert (row["attempts"], row["broken"]) == (len(own) - broken, broken)
        at_24 = [t.score for t in own if t.global_step == 24 and t.score is not None]
        assert row["validation"][-1] == (24, sum(at_24) / len(at_24))
    assert look.total == 144 and len(look.chosen) == 10


def test_pictures_have_a_budget(run_dir):
    full = Page(build_report(run_dir).read_text()).content
    small = Page(build_report(run_dir, max_picture_bytes=20_000).read_text()).content
    assert len(small["episodes"]) == len(full["episodes"])
    assert sum(map(len, small["pictures"].values())) < 40_000 < sum(map(len, full["pictures"].values()))


def test_large_screenshots_are_shrunk_and_broken_ones_left_out(synthetic, caplog):
    noise = io.BytesIO()
    Image.frombytes("RGB", (1920, 1080), os.urandom(1920 * 1080 * 3)).save(noise, "PNG")
    book = PictureBook()
    name = book.add(noise.getvalue())
    assert book.urls[name].startswith("data:image/webp") and book.size < len(noise.getvalue()) / 4
    assert book.add(b"") is None and book.add(b"\x89PNG torn") is None and "cannot be shown" in caplog.text
    png = synthetic.screen_png(random.Random(0))
    assert book.add(png) == book.add(png) and len(book.urls) == 2


def test_plot(run_dir):
    pytest.importorskip("matplotlib")
    path = build_plot(run_dir)
    with Image.open(path) as picture:
        assert picture.width > 900 and len(picture.convert("RGB").getcolors(1 << 24)) > 10


def test_plot_of_several_seeds_has_a_band(run_dir, synthetic, tmp_path):
    pytest.importorskip("matplotlib")
    other = synthetic.make_run(tmp_path / "other", seed=1)
    alone, together = build_plot(run_dir), build_plot(run_dir, tmp_path / "all.png", seeds=[other])
    assert alone.read_bytes() != together.read_bytes()


def test_spread_is_over_the_steps_that_all_runs_have():
    assert spread([[(0, 0.2), (5, 0.4), (9, 1.0)], [(0, 0.4), (5, 0.8)]]) == [
        (0, pytest.approx(0.3), 0.2, 0.4),
        (5, pytest.approx(0.6), 0.4, 0.8),
    ]
    assert spread([]) == spread([[(0, 1.0)], []]) == []


def test_plot_of_nothing_says_so(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="no success rate"):
        build_plot(tmp_path)


def test_runs_are_reproducible(synthetic, tmp_path):
    one, other = synthetic.make_run(tmp_path / "a"), synthetic.make_run(tmp_path / "b")
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
