"""Which environments and which rollout settings an evaluation runs with."""

import json
from pathlib import Path

import pytest
from in_process import instances

from verl_gui.config import ConfigError
from verl_gui.evaluation.session import Session, load_gui_config, read_sessions
from verl_gui.tasks import expand_source

QUICKSTART = Path(__file__).parents[2] / "recipes/quickstart/quickstart.yaml"


def test_a_recipes_node_is_used_as_it_stands():
    gui = load_gui_config(QUICKSTART, [], [])
    assert (gui.env.backend, gui.rollout.system_prompt, gui.rollout.max_pixels) == ("miniwob", "Act.", 37632)


def test_single_keys_are_changed():
    changes = ["gui.env.num_envs=3", "gui.rollout.system_prompt=null", "gui.env.options.screen=[320,240]"]
    gui = load_gui_config(QUICKSTART, changes, [])
    assert (gui.env.num_envs, gui.rollout.system_prompt) == (3, None)
    assert gui.env.options == {"screen": [320, 240]}


def test_pages_choose_their_backend_and_others_have_to_say():
    assert load_gui_config(None, [], expand_source("miniwob:click-test@test:1")).env.backend == "miniwob"
    with pytest.raises(ConfigError, match="which environments"):
        load_gui_config(None, [], instances("t"))
    assert load_gui_config(None, ["gui.env.backend=desktop"], instances("t")).env.backend == "desktop"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("rollout.n=4", "expected gui.<key>=<value>"),
        ("gui.rollout.max_steps", "expected gui.<key>=<value>"),
        ("gui.rollout.max_step=4", "no such key"),
        ("gui.rollout.max_steps=x", "max_steps='x'"),
        ("gui.rollout.language=${nowhere}", "nowhere"),
    ],
)
def test_wrong_keys_are_named(change, why):
    with pytest.raises(ConfigError, match=why):
        load_gui_config(QUICKSTART, [change], [])


def test_a_recipe_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        load_gui_config(tmp_path / "nowhere.yaml", [], [])


def test_sittings_are_read_back_without_torn_lines(tmp_path):
    session = Session(1.0, 2.0, 3, 4, 0.5, 0.25)
    (tmp_path / "sessions.jsonl").write_text(json.dumps(session.__dict__) + '\n{"seconds": 1')
    assert read_sessions(tmp_path) == [session] and read_sessions(tmp_path / "none") == []
