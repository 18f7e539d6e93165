"""The tokens that are trained on are those that were sampled, at borders that are the template's."""

import json
from pathlib import Path

import pytest
from test_agent_loop import CLICK, ScriptedEnv, play, processor, sampled  # noqa: F401 (processor: a fixture)

FILE = Path(__file__).parent / "data/sequence_cases.jsonl"
CASES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def cases(kind):
    chosen = [case for case in CASES if case["kind"] == kind]
    assert chosen, kind
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])


@cases("roundtrip")
def test_sampled_ids_are_kept_where_encoding_again_gives_others(processor, monkeypatch, case):  # noqa: F811
    tokenizer = processor.tokenizer
    text = CLICK + "\n"
    pieces = tokenizer(text, add_special_tokens=False).input_ids
    letters = [tokenizer(letter, add_special_tokens=False).input_ids for letter in text]
    spelled = [token for ids in letters for token in ids][: case["sampled_len"]]
    assert len(spelled) == case["sampled_len"] > len(pieces) - 1
    again = tokenizer(tokenizer.decode(spelled), add_special_tokens=False).input_ids
    assert again != spelled and len(again) < len(spelled)

    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    (output,), model = play(
        processor, ScriptedEnv(turns=3), [[*spelled, stop]] * 4, monkeypatch=monkeypatch, stop=False
    )
    assert sampled(output) == [*spelled, stop] * len(model.asked)
    for before, after in zip(model.asked, model.asked[1:], strict=False):
        assert after[0][: len(before[0]) + len(spelled) + 1] == [*before[0], *spelled, stop]


@cases("turn_border")
@pytest.mark.parametrize("turns", [1, 2, 4])
def test_the_whole_sequence_is_the_templates(processor, monkeypatch, case, turns):  # noqa: F811
    assert "apply_chat_template" in case["expect"]
    (output,), _ = play(processor, ScriptedEnv(turns=turns), [CLICK] * turns, monkeypatch=monkeypatch)
    messages = [
        {"role": "system", "content": "Act."},
        {"role": "user", "content": [{"type": "text", "text": "Click it."}, {"type": "image"}]},
    ]
    for turn in range(turns):
        messages.append({"role": "assistant", "content": CLICK})
        if turn < turns - 1:
            messages.append({"role": "user", "content": [{"type": "image"}]})
    text = processor.apply_chat_template(messages, tokenize=False)
    images = output.multi_modal_data["images"]
    whole = processor(text=[text], images=images, return_tensors="pt").input_ids[0].tolist()
    assert output.prompt_ids + output.response_ids == whole[:-1]  # but the newline after the last stop token
    assert processor.tokenizer.decode(whole).count("<|im_start|>system") == 1
