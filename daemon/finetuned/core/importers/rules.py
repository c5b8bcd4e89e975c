"""Keys that need no translating: tables of what is not needed here, and of what cannot be had."""

from collections.abc import Mapping
from dataclasses import dataclass

from finetuned.core.importers.ledger import Found, Ledger
from finetuned.core.jobfile.later import ANYTHING
from finetuned.core.jobfile.values import asks_for_nothing, found
from finetuned.core.jobfile.words import JOB_WORDS


@dataclass(frozen=True)
class Rule:
    """`harmless`: values that ask for nothing; with ANYTHING the key is never needed and `what` says why."""

    what: str
    instead: str = ""
    harmless: frozenset[str] = frozenset()


Rules = Mapping[str, Rule]
"""Key → rule; a key may end in `*`."""

NO_REMOTE_CODE = "has no effect: a model's own code is never run here; a model that needs it is refused before the run"


def unneeded(names: str, why: str) -> dict[str, Rule]:
    """Keys that change no result here, whatever they say."""
    return {name: Rule(why, harmless=ANYTHING) for name in names.split()}


def refused(names: str, what: str, instead: str, harmless: str = "") -> dict[str, Rule]:
    """Keys that would change the run and cannot be had, except with one of the `harmless` values."""
    return {name: Rule(what, instead, frozenset(harmless.split())) for name in names.split()}


def apply_rule(key: Found, rules: Rules, ledger: Ledger) -> None:
    """Say what becomes of a key that no translation took: every key that is not known is refused."""
    name = key.key.rpartition(".")[2]
    if key.is_empty:
        ledger.ignore(key, "is empty")
        return
    rule = rule_for(name, rules)
    if rule is None and "." not in key.key and (not_yet := JOB_WORDS.not_yet_about(name)):
        rule = Rule(not_yet.what, not_yet.instead, not_yet.harmless)
    if rule is None:
        instead = "delete it if the run does not need it; what it means cannot be guessed"
        ledger.refuse(key, f"is {found(key.node)}: not a key that can be translated", instead)
    elif rule.harmless == ANYTHING:
        ledger.ignore(key, rule.what)
    elif asks_for_nothing(key.node, rule.harmless):
        ledger.ignore(key, f"is {found(key.node)}, which asks for nothing that would not happen anyway")
    else:
        ledger.refuse(key, f"is {found(key.node)}: cannot be had here ({rule.what})", rule.instead)


def rule_for(name: str, rules: Rules) -> Rule | None:
    if name in rules:
        return rules[name]
    families = (family for family in rules if family.endswith("*"))
    return next((rules[family] for family in families if name.startswith(family[:-1])), None)
