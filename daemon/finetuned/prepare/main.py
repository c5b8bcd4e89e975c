"""The prepare stage as a recipe: spec → model → rows → facts.json and preview.txt."""

from pathlib import Path
from typing import Any

from finetuned.core.events import Ending, Finished
from finetuned.core.plan import DataFacts, Facts
from finetuned.core.problems import CannotRun, InvalidSpec, Problem, StageFailed
from finetuned.core.spec import Dataset, JobSpec, parse_spec
from finetuned.host.claim import dropped_folder
from finetuned.host.files import write_whole
from finetuned.host.jobdir import write_record
from finetuned.host.sources import Unusable, locate, look_at_rows, source_problems
from finetuned.host.stage import StageRun, now
from finetuned.host.store import Store
from finetuned.prepare.facts import model_facts, read_config, stop_token_ids
from finetuned.prepare.fetch import BaseModel, obtain_model
from finetuned.prepare.prepared import Recipe, obtain_rows
from finetuned.prepare.preview import preview
from finetuned.prepare.progress import Progress
from finetuned.prepare.read import DataFile, look_through
from finetuned.prepare.render import Renderer
from finetuned.prepare.targets import require_targets
from finetuned.prepare.template import Template, choose_template

_AUTO_MAX_SEQ_LENGTH = 4096


def prepare(run: StageRun) -> Ending:
    """Everything that a run needs and no GPU does. Raises InvalidSpec, CannotRun, StageFailed, StopRequested."""
    claim = run.job.read_claim()
    name = claim.name if claim else run.job.spec_file.name
    parsed = parse_spec(run.job.read_spec_text() or "", name)
    return prepare_spec(run, parsed.spec, name, parsed.notices)


def prepare_spec(run: StageRun, spec: JobSpec, name: str = "job.yaml", notices: tuple[str, ...] = ()) -> Ending:
    """`prepare` for a spec that is parsed already; `name` is the job file's, `notices` what its parser had to say."""
    folder = dropped_folder(run.job)
    if problems := source_problems(spec, folder):
        raise InvalidSpec(name, problems)
    store = Store(run.job.spool / "store")
    store.create()

    run.enter("fetching")
    model = obtain_model(spec, folder, store, run)
    config = read_config(model.path)
    facts_of_model = model_facts(spec.base_model, model.path, model.revision, config, model.files, model.weights)
    unfrozen_parameters = require_targets(spec, config)
    max_seq_length = _max_seq_length(spec, facts_of_model.max_position_embeddings)

    run.enter("reading")
    tokenizer = _load_tokenizer(model)
    train, held_out = _look_through(spec.datasets, folder, run), _look_through(spec.eval_datasets, folder, run)
    has_chats = any(file.kind == "chat" for file in (*train, *held_out))
    template = choose_template(spec.chat_template, folder, tokenizer) if has_chats else None
    end_of_turn = template.end_of_turn.token_id if template and template.end_of_turn else None
    recipe = Recipe(
        train=train,
        held_out=held_out,
        val_set_size=0 if spec.eval_strategy == "no" and spec.val_set_size is None else spec.val_set_size,
        method=spec.method,
        max_seq_length=max_seq_length,
        excess_length_strategy=spec.excess_length_strategy,
        train_on_inputs=spec.train_on_inputs,
        chat_template=template.text if template else None,
        stop_token_ids=stop_token_ids(model.path, config, tokenizer, end_of_turn),
        vocab_size=facts_of_model.vocab_size,
        positions=facts_of_model.max_position_embeddings,
        tokenizer_files=model.small_files,
    )
    renderer = Renderer(
        tokenizer, template, train_on_inputs=spec.train_on_inputs, roles_to_train=spec.roles_to_train
    )
    data = obtain_rows(recipe, renderer, store, run)

    notices = (*notices, *_notices(template, data))
    for text in notices:
        run.notice(text)
    write_whole(run.job.preview, preview(data, store.prepared_dir(data.prepared), tokenizer).encode())
    facts = Facts(model=facts_of_model, data=data, unfrozen_parameters=unfrozen_parameters, notices=notices)
    write_record(run.job.facts_file, facts)
    return Finished(time=now())


def _load_tokenizer(model: BaseModel) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model.path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # Tokenizers raise bare Exceptions from Rust for a damaged tokenizer.json.
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StageFailed(f"the tokenizer in {model.path} cannot be loaded: {first_line}", retry=False) from error
    if not tokenizer.is_fast:
        raise StageFailed(
            f"{model.path} has only a slow tokenizer, which cannot say where its tokens stand in the text",
            retry=False,
            hint="add the model's tokenizer.json",
        )
    return tokenizer


def _look_through(datasets: tuple[Dataset, ...], folder: Path | None, run: StageRun) -> tuple[DataFile, ...]:
    files = []
    for dataset in datasets:
        try:
            path = locate(dataset.path, folder)
            kind = look_at_rows(dataset, path)
        except Unusable as error:
            raise StageFailed(str(error), retry=False, hint=error.hint) from error
        progress = Progress(run, "reading", "bytes", path.stat().st_size)
        files.append(look_through(dataset.path, path, kind, progress.advance))
    return tuple(files)


def _max_seq_length(spec: JobSpec, positions: int) -> int:
    """What was asked, or min(4096, the model's). Raises CannotRun for more than the model can place."""
    if spec.max_seq_length is None:
        return min(_AUTO_MAX_SEQ_LENGTH, positions)
    if spec.max_seq_length > positions:
        problem = Problem(
            place="max_seq_length",
            what=f"{spec.max_seq_length:,} is more than the {positions:,} positions of {spec.base_model}",
            hint=f"set max_seq_length: {positions} or less",
        )
        raise CannotRun([problem])
    return spec.max_seq_length


def _notices(template: Template | None, data: DataFacts) -> tuple[str, ...]:
    found = list(template.notices) if template else []
    if data.over_long_rows:
        rows = "1 row is" if data.over_long_rows == 1 else f"{data.over_long_rows:,} rows are"
        found.append(
            f"{rows} longer than max_seq_length {data.max_seq_length:,}; preview.txt lists what became of them"
        )
    if (others := len(data.dropped) - data.over_long_rows) > 0:
        rows = "1 row was" if others == 1 else f"{others:,} rows were"
        found.append(f"{rows} dropped for having nothing to learn; preview.txt lists them")
    return tuple(found)
