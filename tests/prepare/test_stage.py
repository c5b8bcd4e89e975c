"""The prepare stage as a whole, inside the test: rows in, facts and prepared files out."""

import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from finetuned.core.events import Noticed
from finetuned.core.problems import InvalidSpec, StageFailed, StopRequested
from finetuned.core.spec import Dataset
from preparing import InProcess, a_chat, a_model_folder, load_tokenizer, write_safetensors


def test_rows_become_arrow_files_in_the_order_of_the_data(stage: InProcess, chatml: Any) -> None:
    facts = stage.prepare(stage.spec(a_chat("a", "b"), a_chat("c", "d")))
    rows = stage.rows(facts)
    assert [source.rpartition(":")[2] for source, _, _ in rows] == ["1", "2"]
    _, input_ids, is_target = rows[1]
    assert chatml.decode([i for i, t in zip(input_ids, is_target, strict=True) if t]) == "d<|im_end|>"
    assert facts.data.train_rows == 2
    assert facts.data.train_tokens == sum(len(ids) for _, ids, _ in rows)
    assert facts.data.train_target_tokens == sum(sum(targets) for _, _, targets in rows)
    assert facts.data.eval_rows == 0


def test_what_the_arrow_files_hold_is_what_the_worker_reads(stage: InProcess) -> None:
    import pyarrow as pa

    facts = stage.prepare(stage.spec(*(a_chat(f"q {i}", f"a {i}") for i in range(5)), val_set_size=2))
    folder = stage.root / "spool/store/prepared" / facts.data.prepared
    for name, rows in (("train", 3), ("eval", 2)):
        table = pa.ipc.open_file(pa.memory_map(str(folder / f"{name}.arrow"))).read_all()
        assert table.num_rows == rows
        assert table.schema == pa.schema(
            [("input_ids", pa.list_(pa.int32())), ("is_target", pa.list_(pa.bool_())), ("source", pa.string())]
        )


def test_the_model_is_described_without_loading_it(stage: InProcess, chatml: Any) -> None:
    model = stage.prepare(stage.spec(a_chat("a", "b"))).model
    assert model.architecture == "LlamaForCausalLM"
    assert model.parameters == 4 * len(chatml)
    assert model.weight_bytes == 16 * len(chatml)
    assert model.tied_embeddings
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.path for file in model.files}
    assert all(len(file.sha256) == 64 for file in model.files)


def test_the_template_and_what_to_stop_on_are_facts(stage: InProcess, chatml: Any) -> None:
    data = stage.prepare(stage.spec(a_chat("a", "b"))).data
    assert data.chat_template == chatml.chat_template
    assert data.stop_token_ids == (chatml.convert_tokens_to_ids("<|im_end|>"),)


def test_generation_stops_on_the_models_ends_and_on_the_templates(tmp_path: Path, llama3: Any) -> None:
    model = a_model_folder(tmp_path / "model", llama3, eos_token_id=[1])
    (model / "generation_config.json").write_text('{"eos_token_id": [1, 7]}')
    stage = InProcess(tmp_path, model)
    data = stage.prepare(stage.spec(a_chat("a", "b"))).data
    assert data.stop_token_ids == tuple(sorted({1, 7, llama3.convert_tokens_to_ids("<|eot_id|>")}))


@pytest.mark.parametrize("odd", ['{"eos_token_id": "</s>"}', '{"eos_token_id": [[7], null]}', "[]", "{"])
def test_generation_settings_that_make_no_sense_are_left_alone(tmp_path: Path, llama3: Any, odd: str) -> None:
    model = a_model_folder(tmp_path / "model", llama3, eos_token_id=[1])
    (model / "generation_config.json").write_text(odd)
    stage = InProcess(tmp_path, model)
    data = stage.prepare(stage.spec(a_chat("a", "b"))).data
    assert data.stop_token_ids == tuple(sorted({1, llama3.convert_tokens_to_ids("<|eot_id|>")}))


def test_all_malformed_rows_are_told_at_once_up_to_twenty(stage: InProcess) -> None:
    spec = stage.spec(a_chat("a", "b"), *({"messages": i} for i in range(25)))
    with pytest.raises(StageFailed, match="25 rows of the data cannot be used") as failure:
        stage.prepare(spec)
    problems = failure.value.problems
    assert [problem.place.rpartition(":")[2] for problem in problems[:2]] == ["2", "3"]
    assert problems[1].what == "messages: expected a list of messages, got the number 1"
    assert problems[-1].what == "and 5 more rows like these"
    assert not failure.value.retry
    assert list((stage.root / "spool/store/prepared").iterdir()) == []


def test_rows_without_an_answer_are_dropped_counted_and_listed(stage: InProcess) -> None:
    facts = stage.prepare(stage.spec(a_chat("a"), a_chat("a", "b"), max_dropped_ratio=0.5))
    assert facts.data.train_rows == facts.data.dropped_rows == facts.data.rows_without_targets == 1
    assert [note.place.rpartition(":")[2] for note in facts.data.dropped] == ["1"]
    assert facts.notices[0].startswith("1 row was dropped for having nothing to learn")
    assert any(isinstance(event, Noticed) for event in stage.events())


def test_data_of_which_nothing_is_learned_are_refused(stage: InProcess) -> None:
    with pytest.raises(StageFailed, match="no row is left to train on") as failure:
        stage.prepare(stage.spec(a_chat("a"), a_chat("b")))
    assert len(failure.value.problems) == 2


def test_over_long_rows_fail_the_job_when_they_are_many(stage: InProcess) -> None:
    with pytest.raises(StageFailed, match=r"1 of 2 rows \(50.0%\) would be dropped: 1 longer than max_seq_length 128"):
        stage.prepare(stage.spec(a_chat("a", "b"), a_chat("a", "b " * 200)))


def test_max_seq_length_is_the_models_where_that_is_less_than_4096(stage: InProcess) -> None:
    assert stage.prepare(stage.spec(a_chat("a", "b"))).data.max_seq_length == 128


def test_more_than_the_models_positions_is_refused(stage: InProcess) -> None:
    with pytest.raises(InvalidSpec, match="4,096 is more than the 128 positions"):
        stage.prepare(stage.spec(a_chat("a", "b"), max_seq_length=4096))


def test_the_evaluation_split_does_not_depend_on_the_order_of_rows(stage: InProcess) -> None:
    rows = [a_chat(f"q {i}", f"a {i}") for i in range(40)]
    held_out = []
    for order in (rows, rows[::-1]):
        facts = stage.prepare(stage.spec(*order, val_set_size=0.1))
        held_out.append({tuple(input_ids) for _, input_ids, _ in stage.rows(facts, "eval")})
    assert held_out[0] == held_out[1]
    assert len(held_out[0]) == 4


def test_evaluation_data_of_its_own_leave_the_training_data_whole(stage: InProcess) -> None:
    own = tiny.write_jsonl(stage.root / "eval.jsonl", [a_chat("x", "y")])
    rows = [a_chat(f"q {i}", f"a {i}") for i in range(250)]
    facts = stage.prepare(stage.spec(*rows, eval_datasets=(Dataset(path=str(own), format="auto"),)))
    assert (facts.data.train_rows, facts.data.eval_rows) == (250, 1)
    assert [probe["prompt"] for probe in stage.probes(facts)] == ["x"]


def test_no_rows_are_held_out_where_nothing_evaluates(stage: InProcess) -> None:
    facts = stage.prepare(stage.spec(*(a_chat(f"q {i}", f"a {i}") for i in range(250)), eval_strategy="no"))
    assert facts.data.eval_rows == 0


def test_probes_are_held_out_prompts_up_to_where_the_model_answers(stage: InProcess, chatml: Any) -> None:
    facts = stage.prepare(stage.spec(*(a_chat(f"q {i}", f"a {i}") for i in range(40)), val_set_size=6))
    held_out = [chatml.decode(input_ids) for _, input_ids, _ in stage.rows(facts, "eval")]
    probes = stage.probes(facts)
    assert len(probes) == 4
    for probe in probes:
        rendered = chatml.decode(probe["prompt_ids"])
        assert rendered == f"<|im_start|>user\n{probe['prompt']}<|im_end|>\n<|im_start|>assistant\n"
        assert f"{rendered}{probe['reference']}<|im_end|>\n" in held_out


def test_probes_of_plain_text_are_its_first_part(stage: InProcess, chatml: Any) -> None:
    [probe] = stage.probes(stage.prepare(stage.spec({"text": "add 1 and 2 gives 3"})))
    assert probe["prompt"] + probe["reference"] == "add 1 and 2 gives 3"
    assert chatml.decode(probe["prompt_ids"]) == probe["prompt"]


def test_pretraining_cuts_text_into_examples_of_max_seq_length(stage: InProcess, chatml: Any) -> None:
    facts = stage.prepare(stage.spec({"text": "add 1 and 2 " * 20}, method="pretrain", max_seq_length=16))
    rows = stage.rows(facts)
    assert len(rows) > 1
    assert max(len(input_ids) for _, input_ids, _ in rows) == facts.data.longest_tokens == 16
    assert rows[-1][1][-1] == chatml.eos_token_id
    assert facts.data.chat_template is None
    assert facts.data.over_long_rows == 0


def test_the_same_job_again_reuses_the_prepared_rows(stage: InProcess) -> None:
    spec = stage.spec(a_chat("a", "b"))
    first = stage.prepare(spec)
    folder = stage.root / "spool/store/prepared" / first.data.prepared
    written = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert stage.prepare(spec) == first
    assert {path.name: path.stat().st_ino for path in folder.iterdir()} == written


def test_prepared_rows_that_are_not_whole_are_made_anew(stage: InProcess) -> None:
    spec = stage.spec(a_chat("a", "b"))
    folder = stage.root / "spool/store/prepared" / stage.prepare(spec).data.prepared
    (folder / "train.arrow").write_bytes(b"torn")
    facts = stage.prepare(spec)
    assert len(stage.rows(facts)) == 1


@pytest.mark.parametrize(
    "changes", [{"train_on_inputs": True}, {"max_seq_length": 64}, {"val_set_size": 1}, {"chat_template": "chatml"}]
)
def test_what_shapes_the_rows_names_them(stage: InProcess, changes: dict[str, object]) -> None:
    spec = stage.spec(a_chat("a", "b"), a_chat("c", "d"))
    changed = spec.model_copy(update=changes)
    assert stage.prepare(spec).data.prepared != stage.prepare(changed).data.prepared


@pytest.mark.parametrize("changes", [{"learning_rate": 1e-5}, {"priority": 3}, {"seed": 7}])
def test_what_does_not_shape_the_rows_does_not_name_them(stage: InProcess, changes: dict[str, object]) -> None:
    spec = stage.spec(a_chat("a", "b"))
    changed = spec.model_copy(update=changes)
    assert stage.prepare(spec).data.prepared == stage.prepare(changed).data.prepared


def test_one_byte_changed_in_template_or_data_names_other_rows(stage: InProcess) -> None:
    template = stage.root / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.role + ':' + m.content + '<|im_end|>' }}{% endfor %}")
    spec = stage.spec(a_chat("a", "b"), chat_template=str(template))
    names = [stage.prepare(spec).data.prepared]
    template.write_text(template.read_text().replace(":", ";"))
    names.append(stage.prepare(spec).data.prepared)
    data = Path(spec.datasets[0].path)
    data.write_text(data.read_text().replace('"b"', '"c"'))
    names.append(stage.prepare(spec).data.prepared)
    assert len(set(names)) == 3


def test_a_dropped_folder_brings_its_own_data_template_and_model(stage: InProcess, chatml: Any) -> None:
    run = stage.new_run()
    dropped = run.job.dropped
    tiny.write_jsonl(dropped.mkdir() or dropped / "data.jsonl", [a_chat("a", "b")])
    a_model_folder(dropped / "model", chatml)
    spec = stage.spec(a_chat("x", "y")).model_copy(
        update={"base_model": "./model", "datasets": (Dataset(path="data.jsonl", format="auto"),)}
    )
    facts = stage.prepare(spec, run)
    assert facts.data.sources[0].path == "data.jsonl"
    assert Path(facts.model.path).parent == stage.root / "spool/store/models"
    assert (Path(facts.model.path) / "model.safetensors").is_file()


def test_a_manifest_in_somebodys_folder_is_not_believed(stage: InProcess) -> None:
    claimed = {"path": "../escaped.safetensors", "size_bytes": 1, "sha256": "0" * 64}
    (stage.root / "escaped.safetensors").write_bytes(b"x")
    (stage.model / "manifest.json").write_text(json.dumps({"format": 1, "files": [claimed]}))
    files = stage.prepare(stage.spec(a_chat("a", "b"))).model.files
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.path for file in files}
    assert claimed["path"] not in {file.path for file in files}


def test_the_preview_shows_what_is_learned_token_by_token(stage: InProcess) -> None:
    stage.prepare(stage.spec(a_chat("add 1 and 2", "gives 3")))
    text = stage.runs[-1].job.preview.read_text()
    assert "<|im_start|>assistant\n⟦gives 3<|im_end|>⟧" in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith(">")][-1] == "'<|im_end|>'"
    assert "train  1 row, " in text


def test_sources_that_are_missing_are_told_before_anything_is_read(stage: InProcess) -> None:
    spec = stage.spec(a_chat("a", "b")).model_copy(update={"base_model": "/nowhere"})
    with pytest.raises(InvalidSpec, match="/nowhere does not exist"):
        stage.prepare(spec)


def test_a_stop_that_was_asked_for_already_ends_the_stage_at_once(stage: InProcess) -> None:
    run = stage.new_run()
    run.stop.why = "asked to stop (SIGTERM)"
    with pytest.raises(StopRequested):
        stage.prepare(stage.spec(a_chat("a", "b")), run)


def test_a_token_that_the_model_has_no_embedding_for_is_told_with_both_numbers(tmp_path: Path, chatml: Any) -> None:
    stage = InProcess(tmp_path, a_model_folder(tmp_path / "model", chatml, vocab_size=100))
    with pytest.raises(StageFailed, match=r"data-0\.jsonl:1 has token \d+, and the model knows 100 tokens") as failure:
        stage.prepare(stage.spec(a_chat("add", "gives")))
    assert "resize_token_embeddings" in failure.value.hint
    assert not failure.value.retry


def test_a_tokenizer_with_one_token_more_than_the_model_is_noticed_when_it_is_used(tmp_path: Path, chatml: Any) -> None:
    model = a_model_folder(tmp_path / "model", chatml)
    added = load_tokenizer(model)
    added.add_tokens(["<added>"])
    added.save_pretrained(model)
    stage = InProcess(tmp_path, model)
    assert stage.prepare(stage.spec(a_chat("a", "b"))).data.train_rows == 1
    with pytest.raises(StageFailed, match=f"has token {len(chatml)}, and the model knows {len(chatml)} tokens"):
        stage.prepare(stage.spec(a_chat("a", "<added>")))


def test_weights_that_are_cut_off_are_refused(stage: InProcess) -> None:
    weights = stage.model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(StageFailed, match=r"model.safetensors is cut off: it has [\d,]+ of [\d,]+ bytes"):
        stage.prepare(stage.spec(a_chat("a", "b")))


def test_parameters_of_all_shards_are_counted_once(stage: InProcess, chatml: Any) -> None:
    size = len(chatml)
    (stage.model / "model.safetensors").unlink()
    write_safetensors(stage.model / "a.safetensors", {"model.embed_tokens.weight": (size, 4)})
    write_safetensors(stage.model / "b.safetensors", {"lm_head.weight": (size, 4), "model.norm.weight": (4, 1)})
    index = {"weight_map": {"model.embed_tokens.weight": "a.safetensors", "lm_head.weight": "b.safetensors"}}
    (stage.model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert stage.prepare(stage.spec(a_chat("a", "b"))).model.parameters == 4 * size + 4


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "weights that are quantized"),
        ({"model_type": "t5"}, "is a t5 model, and finetuned tunes causal language models"),
        ({"model_type": "nonsense"}, "config.json cannot be used"),
    ],
)
def test_models_that_cannot_be_tuned_are_refused(
    stage: InProcess, chatml: Any, changes: dict[str, object], what: str
) -> None:
    a_model_folder(stage.model, chatml, **changes)
    with pytest.raises(StageFailed, match=what):
        stage.prepare(stage.spec(a_chat("a", "b")))
