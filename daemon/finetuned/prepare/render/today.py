"""What a template takes for today. Many write the date into their system prompt: rows must not differ from day to day.

Rows are rendered with one fixed day, so that preparing them again, on any day and machine, gives the same rows.
"""

import json
import string
from datetime import datetime

TODAY = datetime(2024, 7, 26)
"""The day that Llama's templates themselves write where they are given none."""


def asks_for_today(template: str) -> bool:
    return "strftime_now" in template


def with_fixed_today(template: str) -> str:
    """`template` as it renders on TODAY; itself where it does not ask.

    In Jinja, because apply_chat_template takes no function of ours: a macro goes before a global of the same name.
    """
    return _MACRO + template if asks_for_today(template) else template


def _macro() -> str:
    replacements = []
    for letter in string.ascii_letters:
        for directive in (f"%-{letter}", f"%{letter}"):
            spelled = TODAY.strftime(directive)
            if spelled not in (directive, ""):
                replacements.append(f"|replace({json.dumps(directive)},{json.dumps(spelled)})")
    return "{%- macro strftime_now(format) -%}{{- format" + "".join(replacements) + " -}}{%- endmacro -%}"


_MACRO = _macro()
