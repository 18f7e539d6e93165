"""Micro-batches of image rows, text rows and both, through verl's own preparation and patched forward."""

import itertools

import pytest
import torch
from layouts import MODELS, cases
from tiny_models import ROWS, forward, tiny_model
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen2_vl import modeling_qwen2_vl
from verl.models.transformers.monkey_patch import apply_monkey_patch


@pytest.fixture
def model(request, monkeypatch):
    """A model as verl's engine prepares it; what verl changed in transformers is put back afterwards."""
    for module, prefix in ((modeling_qwen2_vl, "Qwen2VL"), (modeling_qwen2_5_vl, "Qwen2_5_VL")):
        for name in ("Model", "ForConditionalGeneration"):
            changed = getattr(module, prefix + name)
            monkeypatch.setattr(changed, "forward", changed.forward)
    model = tiny_model(request.param)
    apply_monkey_patch(model, use_remove_padding=False)
    return model


both = pytest.mark.parametrize("model", MODELS, indirect=True)


@both
@pytest.mark.parametrize("size", [2, 3, 5])
def test_logits_equal_those_of_each_row_alone(model, size):
    with torch.no_grad():
        alone = {name: forward(model, [name])[0] for name in ROWS}
        for names in itertools.permutations(ROWS, size):
            for name, logits in zip(names, forward(model, names), strict=True):
                torch.testing.assert_close(logits, alone[name], atol=2e-5, rtol=1e-4)


@both
def test_gradients_add_up_in_any_order(model):
    def gradients(micro_batches):
        model.zero_grad()
        for names in micro_batches:
            sum(logits.square().sum() for logits in forward(model, names)).backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    expected = gradients([["text"], ["image"], ["images"], ["short"], ["clip"]])
    assert expected["model.visual.patch_embed.proj.weight"].any()
    for micro_batches in (
        [["images", "text"], ["short", "image", "clip"]],
        [["text", "short"], ["clip"], ["image", "images"]],
    ):
        for name, gradient in gradients(micro_batches).items():
            torch.testing.assert_close(gradient, expected[name], atol=1e-3, rtol=1e-3, msg=name)


@both
@cases("text_only_forward")
def test_text_alone_gives_every_vision_parameter_a_gradient_of_zero(model, case):
    assert model.config.model_type in case["models"]
    sum(logits.square().sum() for logits in forward(model, ["text", "short"])).backward()
    for name, parameter in model.model.visual.named_parameters():
        assert parameter.grad is not None and not parameter.grad.any(), name
    assert model.model.language_model.embed_tokens.weight.grad.any()
