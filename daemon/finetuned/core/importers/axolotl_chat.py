"""axolotl's rows of type chat_template (and the older sharegpt) → ours: where messages, roles and texts stand."""

from finetuned.core.importers.draft import RowKind
from finetuned.core.importers.keys import Given, Keys
from finetuned.core.importers.ledger import Found
from finetuned.core.importers.templates import translate_template
from finetuned.core.importers.work import Work
from finetuned.core.jobfile.findings import shown

_ROLES = {
    "user": {"user", "human"},
    "assistant": {"assistant", "gpt", "model", "bot"},
    "system": {"system"},
    "tool": {"tool", "function"},
}
_USUAL_NAMES = {
    "chat": {"messages": "messages", "tools": "tools", "role": "role", "content": "content"},
    "sharegpt": {"messages": "conversations", "tools": "tools", "role": "from", "content": "value"},
}


def translate_chat(work: Work, keys: Keys, given: Found, *, is_old: bool) -> RowKind:
    work.ledger.keep(given)
    origins = [given]
    names = {"messages": "conversations" if is_old else "messages", "tools": "tools"}
    names |= {"role": "from", "content": "value"} if is_old else {"role": "role", "content": "content"}
    asked = {"messages": keys.text("field_messages"), "tools": keys.text("field_tools")}
    asked |= {"role": keys.text("message_field_role"), "content": keys.text("message_field_content")}
    asked |= _mapped_properties(work, keys)
    for ours, theirs in asked.items():
        if theirs:
            work.ledger.keep(theirs.found)
            origins.append(theirs.found)
            names[ours] = theirs.value
    if conversation := keys.word("conversation"):
        _translate_conversation(work, conversation)
    _check_role_names(work, keys)
    is_sharegpt = (names["role"], names["content"]) == ("from", "value")
    format_ = "sharegpt" if is_sharegpt else "chat"
    usual = _USUAL_NAMES[format_]
    columns = {usual[ours]: theirs for ours, theirs in names.items() if usual[ours] != theirs}
    return RowKind(format_, columns, tuple(origins))


def _mapped_properties(work: Work, keys: Keys) -> dict[str, Given[str] | None]:
    properties = keys.inner("message_property_mappings")
    if properties is None:
        return {}
    for name, found in properties.all.items():
        given = properties.text(name)
        if name not in ("role", "content") and given and given.value != name:
            what = f"takes {shown(name)} of a message from {shown(given.value)}"
            work.ledger.refuse(found, what, f"rename it to {name} in the rows")
        elif name not in ("role", "content") and given:
            work.ledger.keep(found)
    return {name: given for name in ("role", "content") if (given := properties.text(name))}


def _translate_conversation(work: Work, conversation: Given[str]) -> None:
    if conversation.value in ("chatml", "llama3", "llama-3"):
        if not work.draft.has("chat_template") and not work.keys.get("chat_template"):
            translate_template(work, conversation.found, conversation.value.replace("-", ""))
        else:
            work.ledger.keep(conversation.found)
    else:
        what = f"is {shown(conversation.value)}: this style of conversation is not known here"
        work.ledger.refuse(conversation.found, what, "delete it and name a chat_template")


def _check_role_names(work: Work, keys: Keys) -> None:
    roles = keys.inner("roles")
    if roles is None:
        return
    for role, found in roles.all.items():
        theirs = roles.words(role)
        odd = [name for name in theirs.value if name not in _ROLES.get(role, ())] if theirs else []
        if role not in _ROLES or odd:
            what = f"reads {shown(', '.join(odd) or role)} as a role"
            work.ledger.refuse(found, what, "use user, assistant, system and tool (or human and gpt) in the rows")
        else:
            work.ledger.keep(found)
