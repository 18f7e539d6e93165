"""Estimates of what a recipe needs, against numbers worked out by hand."""

import json

import pytest

from verl_gui.launch.recipe_needs import model_shape, recipe_needs

GIB = 1024**3


def config(**env):
    return {
        "gui": {
            "env": {"backend": "desktop", "num_envs": 16, "options": {"screen": [1920, 1080]}, **env},
            "rollout": {"max_steps": 15, "history_images": 15, "min_pixels": 78400, "max_pixels": 2116800},
        },
        "data": {"max_prompt_length": 5120, "max_response_length": 46080, "train_batch_size": 16},
        "actor_rollout_ref": {
            "model": {"path": "ByteDance-Seed/UI-TARS-1.5-7B"},
            "rollout": {"n": 8},
            "actor": {"fsdp_config": {"optimizer_offload": True}},
        },
        "trainer": {"device": "cuda", "n_gpus_per_node": 8, "nnodes": 2, "save_freq": 10},
    }


def test_fifteen_screenshots_of_a_7b_model():
    needs = recipe_needs(config())
    assert needs.image_tokens == pytest.approx(2691, rel=0.02)
    assert needs.pixel_memory == pytest.approx(760e6, rel=0.02)
    # 28 layers, keys and values of 4 heads of 128 numbers of 2 bytes
    assert needs.kv_memory == 51200 * 28 * 2 * 4 * 128 * 2
    assert 8 * 2**20 < needs.trajectory_memory < 24 * 2**20
    assert needs.batch_memory == 3 * 128 * needs.trajectory_memory
    assert needs.actor_memory == 7e9 * 16 // 2


def test_environments_with_a_resource_of_their_own_are_not_the_trainers_burden():
    here, elsewhere = recipe_needs(config(spares=2)), recipe_needs(config(spares=2, resource="gui_env"))
    assert here.envs == 18 and here.envs_per_node == 9
    assert here.node_memory - elsewhere.node_memory == 9 * here.env_memory


def test_a_model_on_disk_is_counted(tmp_path):
    shape = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    rest = {"intermediate_size": 256, "vocab_size": 1000, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {**shape, **rest}}))
    found = model_shape(str(tmp_path))
    assert found.kv_bytes_per_token == 2 * 2 * 4 * 2 * 32
    assert found.parameters == 4 * (128 * 32 * 12 + 3 * 128 * 256) + 128_000


@pytest.mark.parametrize(
    "path, parameters, kv",
    [
        ("Qwen/Qwen2.5-VL-3B-Instruct", 3e9, 36 * 2 * 2 * 128 * 2),
        ("Qwen/Qwen2.5-VL-72B-Instruct", 72e9, 80 * 2 * 8 * 128 * 2),
        ("somebody/agent", None, 28 * 2 * 4 * 128 * 2),
    ],
)
def test_a_model_elsewhere_is_known_by_its_name(path, parameters, kv):
    found = model_shape(path)
    assert (found.parameters, found.kv_bytes_per_token) == (parameters, kv)


def test_on_cpu_nothing_is_offloaded():
    on_cpu = config()
    on_cpu["trainer"]["device"] = "cpu"
    needs = recipe_needs(on_cpu)
    assert needs.gpus == 0 and needs.actor_memory == 0
