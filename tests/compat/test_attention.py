import logging

import pytest
import transformers.utils
from conftest import REPOSITORY

from verl_gui.compat import attention

POLICY = str(REPOSITORY / "recipes/quickstart/policy")


@pytest.fixture(params=[True, False], ids=["flash", "no flash"])
def flash(request, monkeypatch):
    """Whether flash attention can be used here."""
    monkeypatch.setattr(transformers.utils, "is_flash_attn_2_available", lambda: request.param)
    return request.param


def test_released_verl_takes_flash_attention_for_granted(released, flash):
    config = released(attention.BRIDGE).HFModelConfig(path=POLICY)
    assert config.hf_config._attn_implementation == "flash_attention_2" and config.use_remove_padding


def test_what_is_left_open_is_chosen_by_what_is_there(repaired, flash):
    config = repaired(attention.BRIDGE).HFModelConfig(path=POLICY, override_config={"use_cache": False})
    assert config.hf_config._attn_implementation == ("flash_attention_2" if flash else "sdpa")
    assert config.use_remove_padding == config.get("use_remove_padding") == flash
    assert config.override_config["use_cache"] is config.hf_config.use_cache is False


@pytest.mark.parametrize(
    ("chosen", "packed"), [("sdpa", False), ("eager", False), ("flash_attention_3", True)]
)
def test_what_is_configured_stays(repaired, flash, chosen, packed):
    overrides = {"attn_implementation": chosen}
    config = repaired(attention.BRIDGE).HFModelConfig(path=POLICY, override_config=overrides)
    assert config.hf_config._attn_implementation == chosen and config.use_remove_padding == packed


def test_padding_is_kept_with_a_word_and_never_switched_on(repaired, monkeypatch, caplog):
    module = repaired(attention.BRIDGE)
    monkeypatch.setattr(transformers.utils, "is_flash_attn_2_available", lambda: True)
    assert not module.HFModelConfig(path=POLICY, use_remove_padding=False).use_remove_padding
    assert "padded" not in caplog.text
    monkeypatch.setattr(transformers.utils, "is_flash_attn_2_available", lambda: False)
    with caplog.at_level(logging.WARNING):
        module.HFModelConfig(path=POLICY)
    assert "use_remove_padding needs flash attention; with sdpa sequences are padded" in caplog.text
