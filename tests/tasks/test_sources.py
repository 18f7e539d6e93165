import json

import pytest

from verl_gui.tasks import Task, TaskFormatError, TaskInstance, expand_source, expand_sources, load_tasks
from verl_gui.tasks.sources import Split, overlap

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
        ({"config": [{"type": "launch", "parameters": ["x"]}]}, r"config\[0\].parameters"),
        ({"evaluator": {"result": 1}}, "evaluator"),
        ({"evaluator": {"func": 3}}, "evaluator.func"),
        ({"evaluator": {"func": []}}, "evaluator.func"),
        ({"evaluator": {"func": ["a", "b"], "conj": "xor"}}, "evaluator.conj"),
        ({"instruction": None}, "instruction"),
        ({"seed": -1}, "seed"),
        ({"seed": True}, "seed"),
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


def test_every_form_of_osworlds_tasks_is_read(tmp_path):
    forms = [
        {"config": None, "evaluator": {"func": "infeasible"}},
        {"evaluator": {"func": ["a", "b"], "conj": "or", "result": [{}, {}], "expected": [{}, {}]}},
        {"evaluator": {"func": "a", "postconfig": [{"type": "sleep", "parameters": {"seconds": 1}}]}},
        {"related_apps": [], "proxy": True, "fixed_ip": False, "possibility_of_env_change": "low"},
    ]
    array = write(tmp_path / "tasks.json", [{**TASK, **form, "id": f"t{i}"} for i, form in enumerate(forms)])
    tasks = load_tasks(array)
    assert len(tasks) == len(forms)
    assert all(Task.from_dict(task.to_dict()) == task for task in tasks)
    assert tasks[0].infeasible and tasks[1].evaluator["conj"] == "or"


def test_nothing_is_left_out_in_silence(tmp_path):
    write(tmp_path / "examples/os/t-1.json", TASK)
    write(tmp_path / "examples/os/bad.json", {**TASK, "id": 3})
    write(tmp_path / "examples/os/torn.json", '{"id": ')
    listing = write(tmp_path / "test_all.json", {"os": ["t-1", "gone", "bad", "torn"]})
    skipped = []
    assert [t.id for t in load_tasks(listing, skipped=skipped)] == ["t-1"]
    assert [(e.file.rpartition("/")[2], e.field) for e in skipped] == [
        ("gone.json", ""),
        ("bad.json", "id"),
        ("torn.json", ""),
    ]
    skipped.clear()
    assert len(load_tasks(tmp_path, skipped=skipped)) == 1 and len(skipped) == 2


def test_a_path_that_is_not_there_is_refused_even_when_skipping(tmp_path):
    with pytest.raises(TaskFormatError, match="no such file or directory"):
        load_tasks(tmp_path / "gone.json", skipped=[])


def test_a_second_task_of_a_name_is_skipped_with_its_reason(tmp_path):
    file = write(tmp_path / "tasks.json", [TASK, {**TASK, "instruction": "other"}, TASK])
    skipped = []
    assert [t.instruction for t in load_tasks(file, skipped=skipped)] == ["Open the file"]
    assert [e.why for e in skipped] == ["two different tasks are called 't-1'"]


def test_seeds_in_files_make_instances(tmp_path):
    file = write(tmp_path / "tasks.json", [{**TASK, "seed": 4}, {**TASK, "seed": 9}])
    assert [i.name for i in expand_source(str(file))] == ["t-1#4", "t-1#9"]
    assert len(load_tasks(file)) == 1


def seeded(tmp_path, tasks, seeds):
    return write(
        tmp_path / "tasks.json",
        [{**TASK, "id": f"t{i}", "seed": s} for i in range(tasks) for s in range(seeds)],
    )


@pytest.mark.parametrize("by", ["task", "seed"])
def test_the_two_sides_of_a_path_share_nothing_and_stay_when_tasks_are_added(tmp_path, by):
    split = Split(0.3, by)

    def sides(tasks):
        file = seeded(tmp_path, tasks, 4)
        return [expand_source(f"{file}@{side}", split=split) for side in ("train", "test")]

    train, test = sides(40)
    assert len(train) + len(test) == 160 and not overlap(train, test)
    shared_ids = {i.task.id for i in train} & {i.task.id for i in test}
    assert bool(shared_ids) == (by == "seed")
    more_train, more_test = sides(60)
    assert set(map(str, train)) <= set(map(str, more_train)) and set(map(str, test)) <= set(
        map(str, more_test)
    )


def test_a_file_whose_name_ends_like_a_side_is_a_file(tmp_path):
    file = write(tmp_path / "tasks.json@train", TASK)
    assert [i.name for i in expand_source(str(file))] == ["t-1"]


def test_overlap_is_by_seed_where_both_have_one():
    task = Task("t", "do", "os")
    first, second, whole = TaskInstance(task, 1), TaskInstance(task, 2), TaskInstance(task)
    assert overlap([first], [second]) == []
    assert overlap([first, second], [second]) == ["t#2"]
    assert overlap([first], [whole]) == ["t#1"] and overlap([whole], [first]) == ["t"]


def test_built_in_desktop_tasks_are_a_source():
    tasks = expand_source("desktop")
    assert len(tasks) >= 8 and all(i.task.instruction for i in tasks)
