"""From a plan to trained weights: rows, model, optimizer, restore, loop, choice of weights."""

from dataclasses import dataclass
from typing import Any

import torch

from finetuned.core.plan import AdapterFacts, LoraTuning, RunPlan
from finetuned.core.problems import StageFailed
from finetuned.host.stage import StageRun
from finetuned.host.store import Store
from finetuned.host.tokenizer import token_ids
from finetuned.train.batches import Order
from finetuned.train.engine.loop import Data, Learner, Loop
from finetuned.train.engine.optimizer import build_optimizer, is_paged
from finetuned.train.engine.position import Position
from finetuned.train.engine.randomness import seed_everything
from finetuned.train.engine.restore import restore_best, restore_newest
from finetuned.train.engine.saver import Saver
from finetuned.train.model.adapt import adapt
from finetuned.train.model.isolation import is_isolated
from finetuned.train.model.load import choose_device, load_base, load_tokenizer, require_prepared_model
from finetuned.train.model.lora import require_embeddings_that_load
from finetuned.train.model.tokens import grow_embeddings, with_unknown_ones
from finetuned.train.model.tuned import TunedModel
from finetuned.train.rows import open_rows


@dataclass(frozen=True)
class Fitted:
    """A model that holds the weights to be exported, and where training ended."""

    model: TunedModel
    position: Position
    weights_step: int


def fit(run: StageRun, plan: RunPlan) -> Fitted:
    """Train from the newest checkpoint to the end. Raises StageFailed, StopRequested and OSError."""
    train_rows, eval_rows = open_rows(Store(run.job.spool / "store").prepared_dir(plan.data.prepared), plan)
    model = build_model(run, plan)
    run.stop.raise_if_set()
    budget_tokens, eval_budget_tokens = plan.batches.micro_batch_tokens, plan.batches.eval_micro_batch_tokens
    if not is_isolated(model, train_rows):
        budget_tokens = eval_budget_tokens = 0
        run.notice(
            f"{plan.model.architecture} lets examples that share a micro-batch see one another; "
            "each gets a micro-batch of its own, which is slower and gives the same result"
        )
    data = Data(train_rows, eval_rows, Order(len(train_rows), plan.batches), budget_tokens, eval_budget_tokens)
    optimizer = build_optimizer(model, plan.optimizer)
    if plan.optimizer.optim.startswith("paged") and not is_paged(plan.optimizer, model.device):
        run.notice(f"optim: {plan.optimizer.optim}: on a CPU there is nothing to page; the result is the same")
    position = restore_newest(run, plan, model, optimizer)
    run.step = position.step
    with Saver(run, plan, saved_step=position.step) as saver:
        position = Loop(run, plan, Learner(model, optimizer), data, position).run_to_end(saver)
    assert position.step == plan.schedule.total_steps or position.early_end
    weights_step = restore_best(run, plan, model, position)
    _assert_finite(model, weights_step)
    return Fitted(model, position, weights_step)


def build_model(run: StageRun, plan: RunPlan) -> TunedModel:
    """The base model with its trained part, the same for the same plan."""
    device = choose_device(plan, run.job.spool)
    for prepared in (plan.model, _earlier_adapter(plan)):
        if prepared is not None and prepared.files:
            require_prepared_model(prepared, run.job.facts_file.stat().st_ctime_ns)
    tokenizer = load_tokenizer(plan)
    base: Any = load_base(plan, device)
    new_tokens = with_unknown_ones(base, token_ids(tokenizer, (*plan.added_tokens, *plan.added_special_tokens)))
    seed_everything(plan.seed)
    grow_embeddings(base, new_tokens, plan.seed)
    model = adapt(base, plan, device, new_tokens)
    if isinstance(plan.tuning, LoraTuning):
        require_embeddings_that_load(model.network, len(tokenizer))
    return model


def _earlier_adapter(plan: RunPlan) -> AdapterFacts | None:
    return plan.tuning.init_adapter if isinstance(plan.tuning, LoraTuning) else None


def _assert_finite(model: TunedModel, step: int) -> None:
    broken = [name for name, weight in model.trainable.items() if not torch.isfinite(weight).all()]
    if broken:
        raise StageFailed(
            f"{len(broken)} of {len(model.trainable)} trained weights hold infinities or NaN after step {step}, "
            f"among them {broken[0]}",
            retry=False,
            hint="try a lower learning_rate",
        )
