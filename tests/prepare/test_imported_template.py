"""The prompt that importers write out for Alpaca rows renders as in the tools that it comes from."""

from pathlib import Path

import preparing
from finetuned.core.importers.templates import ALPACA
from finetuned.prepare.read.content import Row
from finetuned.prepare.read.formats.alpaca import read_alpaca
from finetuned.prepare.render.renderer import Renderer
from finetuned.prepare.render.template import choose_template


def test_an_alpaca_row_has_one_beginning_and_its_answer_and_end_are_learned(tmp_path: Path):
    tokenizer = preparing.build_byte_level(tmp_path, ["<s>", "</s>"], None)
    template = choose_template(ALPACA, None, tokenizer)
    row = Row("rows.jsonl:1", read_alpaca({"instruction": "Add these.", "input": "1 and 2", "output": "3"}), 1)
    [example] = Renderer(tokenizer, template).examples([row])
    assert tokenizer.decode(example.input_ids) == (
        "<s>Below is an instruction that describes a task. Write a response that appropriately completes the request."
        "\n\n### Instruction:\nAdd these.\n1 and 2\n\n### Response:\n3</s>"
    )
    assert tokenizer.decode(example.input_ids[example.is_target]) == "3</s>"
