import json

import pytest

from verl_gui.tasks import Task, TaskFormatError, expand_source, expand_sources, load_tasks

TASK = {
    "id": "t-1",
    "instruction": "Open the file",
    "config": [{"type": "launch", "parameters": {"command": "mousepad"}}],
    "evaluator": {"func": "exact_match", "expected": {"rules": {}}},
    "related_apps": ["mousepad"],
    "trajectory": "an OSWorld field that is not used",
}


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_a_task_survives_the_way_through_json():
    task = Task.from_dict(TASK)
    assert Task.from_dict(json.loads(json.dumps(task.to_dict()))) == task


def test_osworld_layout(tmp_path):
    write(tmp_path / "examples/os/t-1.json", TASK)
    write(tmp_path / "examples/chrome/t-2.json", {**TASK, "id": "t-2"})
    listing = write(tmp_path / "test_all.json", {"os": ["t-1"], "chrome": ["t-2"]})
    assert [(t.id, t.domain) for t in load_tasks(listing)] == [("t-1", "os"), ("t-2", "chrome")]
    assert {t.id for t in load_tasks(tmp_path)} == {"t-1", "t-2"}


def test_jsonl_and_arrays(tmp_path):
    lines = write(
        tmp_path / "tasks.jsonl", json.dumps(TASK) + "\n\n" + json.dumps({**TASK, "id": "t-2"}) + "\n"
    )
    array = write(tmp_path / "tasks.json", [TASK, {**TASK, "id": "t-2"}])
    assert [t.id for t in load_tasks(lines)] == [t.id for t in load_tasks(array)] == ["t-1", "t-2"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": None}, "id"),
        ({"id": 7}, "id"),
        ({"instruction": ["x"]}, "instruction"),
        ({"config": "launch"}, "config"),
        ({"config": [{"parameters": {}}]}, r"config\[0\]"),
        ({"evaluator": {"result": 1}}, "evaluator"),
        ({"related_apps": "mousepad"}, "related_apps"),
    ],
)
def test_a_malformed_task_names_file_and_field(tmp_path, change, field):
    file = write(tmp_path / "task.json", {**TASK, **change})
    with pytest.raises(TaskFormatError, match=rf"task\.json: field '{field}'"):
        load_tasks(file)


def test_a_missing_file_of_a_list_is_named(tmp_path):
    listing = write(tmp_path / "test_all.json", {"os": ["gone"]})
    with pytest.raises(TaskFormatError, match=r"gone\.json.*no such file"):
        load_tasks(listing)


def test_two_tasks_of_one_name_are_refused(tmp_path):
    file = write(tmp_path / "tasks.json", [TASK, {**TASK, "instruction": "other"}])
    with pytest.raises(TaskFormatError, match="two different tasks"):
        load_tasks(file)


def test_miniwob_splits_never_share_a_seed():
    seeds = {
        split: {instance.seed for instance in expand_source(f"miniwob:click-test-2@{split}:100000")}
        for split in ("train", "demo", "test")
    }
    assert all(len(s) == 100000 for s in seeds.values())
    assert not (
        seeds["train"] & seeds["test"] or seeds["train"] & seeds["demo"] or seeds["demo"] & seeds["test"]
    )


@pytest.mark.parametrize("source", ["miniwob:", "miniwob:click-test@dev", "miniwob:a@train:0", "miniwob:a:b"])
def test_a_malformed_miniwob_source_is_refused(source):
    with pytest.raises(TaskFormatError):
        expand_source(source)


def test_sources_follow_each_other():
    instances = expand_sources(["miniwob:click-test@test:2", "miniwob:click-color:1"])
    assert [(i.task.id, i.seed) for i in instances] == [
        ("miniwob:click-test", 1_000_000_000),
        ("miniwob:click-test", 1_000_000_001),
        ("miniwob:click-color", 0),
    ]
