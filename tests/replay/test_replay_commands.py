"""`verl-gui replay import`, `show` and `merge`, with the quickstart's recipe and policy."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from verl_gui.cli import main
from verl_gui.models.encoded_images import with_pixels
from verl_gui.replay.packing import UNKNOWN_LOG_PROBS
from verl_gui.replay.run import TrainingReplay
from verl_gui.replay.view import open_buffer, screenshots
from verl_gui.rollout.trajectory import Trajectory, TrajectoryStep, TrajectoryWriter

ROOT = Path(__file__).parents[2]
RECIPE, POLICY = ROOT / "recipes/quickstart/quickstart.yaml", ROOT / "recipes/quickstart/policy"
SIZE = (168, 224)
CLICK = "Action: click(start_box='(28,56)')"


def png(shade):
    out = io.BytesIO()
    Image.new("RGB", SIZE, (shade, 80, 0)).save(out, "PNG")
    return out.getvalue()


def recorded(task="miniwob:click-test", seed=3, score=1.0, turns=2, frame=SIZE, **changes):
    steps = [TrajectoryStep(png(turn), CLICK) for turn in range(turns)]
    end = {"outcome": "terminated", "final_screenshot": png(99), **changes}
    return Trajectory(
        task, "Click it.", seed, "u", 9, False, score, 0.0, score, turns, SIZE, frame, steps, **end
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Writes trajectories to a directory; paths in the recipe are relative to the repository."""
    monkeypatch.chdir(ROOT)

    def write(*trajectories):
        writer = TrajectoryWriter(tmp_path / "recorded")
        for trajectory in trajectories:
            writer.write(trajectory)
        writer.close()
        return str(tmp_path / "recorded")

    return write


def replay(*arguments):
    return main(["replay", *map(str, arguments)])


def test_recorded_successes_become_rows(folder, tmp_path, capsys):
    source = folder(
        recorded(), recorded(seed=4, score=0.0), recorded(task="a", seed=None), recorded(score=None)
    )
    out = tmp_path / "successes.safetensors"
    assert replay("import", source, "--recipe", RECIPE, "--out", out) == 0
    assert "2 successes of 2 tasks" in capsys.readouterr().out
    buffer = open_buffer(out)
    assert sorted(buffer.tasks) == ["a", "miniwob:click-test#3"]

    (stored,) = buffer.tasks["miniwob:click-test#3"]
    row = stored.record
    processor = AutoProcessor.from_pretrained(POLICY)
    text = processor.apply_chat_template(
        [
            {"role": "system", "content": "Act."},
            {"role": "user", "content": [{"type": "text", "text": "Click it."}, {"type": "image"}]},
            {"role": "assistant", "content": CLICK},
            {"role": "user", "content": [{"type": "image"}]},
            {"role": "assistant", "content": CLICK},
        ],
        tokenize=False,
    )
    pictures = [Image.open(io.BytesIO(png(turn))) for turn in range(2)]
    whole = processor(text=[text], images=pictures, return_tensors="pt", min_pixels=3136, max_pixels=37632)
    decode = processor.tokenizer.decode
    assert decode(row["input_ids"]) == decode(whole["input_ids"][0]).removesuffix("\n")
    assert torch.equal(with_pixels([row["multi_modal_inputs"]])[0]["pixel_values"], whole["pixel_values"])
    assert row["position_ids"].shape == (4, len(row["input_ids"]))
    assert row["rm_scores"].tolist()[-1] == 1.0 and (stored.step, stored.score) == (0, 1.0)
    assert len(row["rollout_log_probs"]) == len(row["response_mask"]) == len(row["responses"])
    answer = processor.tokenizer(CLICK + "<|im_end|>", add_special_tokens=False).input_ids
    assert row["responses"][row["response_mask"].bool()].tolist() == answer * 2
    assert row["extra_fields"][UNKNOWN_LOG_PROBS] is True
    assert row["extra_fields"]["reward_extra_info"] == {"acc": 1.0, "score": 1.0, "format": 0.0}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (recorded(frame=(224, 168)), r"recorded on a frame of \(224, 168\), this recipe shows \(168, 224\)"),
        (recorded(turns=5), "5 steps were recorded, only 3 fit"),
    ],
)
def test_what_cannot_be_a_row_is_refused_or_left_out(folder, tmp_path, capsys, bad, reason):
    source = folder(recorded(seed=1), bad)
    out = tmp_path / "successes.safetensors"
    assert replay("import", source, "--recipe", RECIPE, "--out", out) == 2
    error = capsys.readouterr().err
    assert re.search(reason, error) and "--skip-unusable" in error
    assert not out.exists()
    assert replay("import", source, "--recipe", RECIPE, "--out", out, "--skip-unusable") == 0
    assert "(1 unusable)" in capsys.readouterr().out and len(open_buffer(out)) == 1


def test_nothing_to_import_writes_nothing(folder, tmp_path, capsys):
    out = tmp_path / "successes.safetensors"
    assert replay("import", folder(recorded(score=0.1)), "--recipe", RECIPE, "--out", out) == 2
    assert "none of 1 trajectories" in capsys.readouterr().err and not out.exists()
    assert replay("import", tmp_path / "nowhere", "--recipe", RECIPE, "--out", out) == 2


def test_show_lists_tasks_and_draws_a_page(folder, tmp_path, capsys):
    out, page = tmp_path / "successes.safetensors", tmp_path / "page.html"
    replay("import", folder(recorded(), recorded(seed=7)), "--recipe", RECIPE, "--out", out)
    capsys.readouterr()
    assert replay("show", out, "--html", page, "--policy", POLICY) == 0
    shown = capsys.readouterr().out
    assert "miniwob:click-test#3" in shown and "2 tasks" in shown
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 4 and "click(start_box=&#x27;(28,56)&#x27;)" in text
    assert "http" not in text.replace("<!doctype html>", "")
    (stored,) = open_buffer(out).tasks["miniwob:click-test#3"]
    assert screenshots(stored.record) == [png(0), png(1)]


def test_a_checkpoint_can_be_looked_at_and_merged(folder, tmp_path, capsys):
    imported = tmp_path / "successes.safetensors"
    replay("import", folder(recorded(), recorded(seed=7)), "--recipe", RECIPE, "--out", imported)
    run = TrainingReplay()
    run.config = replace(run.config, enable=True)
    run.buffer.merge(open_buffer(imported))
    run.buffer.add("other", {"x": torch.arange(3)}, step=4, score=0.5)
    checkpoint = tmp_path / "data.pt"
    torch.save({"_snapshot": {"_dataset": {"replay": run.state_dict()}}, "rng": [1, 2]}, checkpoint)
    assert replay("show", checkpoint) == 0 and "other" in capsys.readouterr().out

    both = tmp_path / "both.safetensors"
    assert replay("merge", imported, checkpoint, "--out", both) == 0
    assert len(open_buffer(both)) == 3  # equal actions count once
    assert replay("merge", imported, checkpoint, "--out", both, "--capacity-per-task", "0") == 2


def test_files_that_are_no_buffers_are_refused(tmp_path, capsys):
    (tmp_path / "text").write_text("hello")
    torch.save({"tasks": {}}, tmp_path / "without.pt")
    refusals = {
        "text": "no success buffer",
        "nowhere": "no success buffer",
        "no.pt": "no checkpoint",
        "without.pt": "gui.replay.enable",
    }
    for name, reason in refusals.items():
        assert replay("show", tmp_path / name) == 2
        assert reason in capsys.readouterr().err
    assert replay("merge", tmp_path / "text", "--out", tmp_path / "out") == 2
    assert not (tmp_path / "out").exists()
