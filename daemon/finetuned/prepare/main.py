"""The prepare stage as a recipe: spec → model → rows → facts.json and preview.txt."""

from finetuned.core.events import Ending, Finished
from finetuned.core.plan import Facts
from finetuned.core.problems import CannotRun, InvalidSpec
from finetuned.core.spec import JobSpec, parse_spec
from finetuned.host.claim import dropped_folder
from finetuned.host.files import write_whole
from finetuned.host.jobdir import write_record
from finetuned.host.sources import source_problems, too_long
from finetuned.host.stage import StageRun, now
from finetuned.host.store import Store
from finetuned.prepare.adapter import obtain_adapter
from finetuned.prepare.facts import model_facts, read_config, stop_token_ids
from finetuned.prepare.fetch import obtain_model
from finetuned.prepare.prepared.build import obtain_rows
from finetuned.prepare.prepared.recipe import Recipe
from finetuned.prepare.prepared.sets import data_notices, look_through_all
from finetuned.prepare.preview import preview
from finetuned.prepare.render.renderer import Renderer
from finetuned.prepare.render.template import choose_template
from finetuned.prepare.skeleton import look_at_skeleton
from finetuned.prepare.targets import require_targets
from finetuned.prepare.tokenizer import known_tokens, open_tokenizer

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
    unfrozen_parameters = require_targets(spec, config, lambda: look_at_skeleton(model.path, run.stop))
    adapter, notices_of_adapter = obtain_adapter(spec, model, folder, store, run)
    max_seq_length = longest_row(spec, facts_of_model.max_position_embeddings)

    run.enter("reading")
    new_tokens = (*spec.added_tokens, *spec.added_special_tokens)
    tokenizer = open_tokenizer(model.path, spec.added_tokens, spec.added_special_tokens)
    sets = look_through_all(spec, folder, run)
    template = choose_template(spec.chat_template, folder, tokenizer) if sets.have_chats else None
    recipe = Recipe(
        train=sets.train,
        held_out=sets.held_out,
        val_set_size=0 if spec.eval_strategy == "no" and spec.val_set_size is None else spec.val_set_size,
        method=spec.method,
        max_seq_length=max_seq_length,
        excess_length_strategy=spec.excess_length_strategy,
        max_dropped_ratio=spec.max_dropped_ratio,
        deduplicate=spec.deduplicate,
        train_on_inputs=spec.train_on_inputs,
        roles_to_train=spec.roles_to_train,
        chat_template=template.text if template else None,
        stop_token_ids=stop_token_ids(model.path, config, tokenizer, template.end_ids if template else ()),
        added_tokens=spec.added_tokens,
        added_special_tokens=spec.added_special_tokens,
        vocab_size=known_tokens(facts_of_model.vocab_size, tokenizer, new_tokens),
        positions=facts_of_model.max_position_embeddings,
        tokenizer_files=model.small_files,
    )
    renderer = Renderer(tokenizer, template, train_on_inputs=spec.train_on_inputs, roles_to_train=spec.roles_to_train)
    prepared = obtain_rows(recipe, renderer, store, run)
    data = prepared.data

    notices = (*notices, *notices_of_adapter, *(template.notices if template else ()))
    notices = (*notices, *data_notices(sets, data), *prepared.notices)
    for text in notices:
        run.notice(text)
    write_whole(run.job.preview, preview(spec, data, store.prepared_dir(data.prepared), tokenizer).encode())
    facts = Facts(
        model=facts_of_model, data=data, adapter=adapter, unfrozen_parameters=unfrozen_parameters, notices=notices
    )
    write_record(run.job.facts_file, facts)
    return Finished(time=now())


def longest_row(spec: JobSpec, positions: int) -> int:
    """What was asked, or min(4096, the model's). Raises CannotRun for more than the model can place."""
    if spec.max_seq_length is None:
        return min(_AUTO_MAX_SEQ_LENGTH, positions)
    if spec.max_seq_length > positions:
        raise CannotRun([too_long(spec.max_seq_length, positions, spec.base_model)])
    return spec.max_seq_length
