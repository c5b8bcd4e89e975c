"""Names of chat templates in axolotl and LLaMA-Factory → ours."""

from collections.abc import Mapping

from finetuned.core.importers.ledger import Found
from finetuned.core.importers.work import Kind, Work
from finetuned.core.jobfile.findings import shown

ALPACA = r"""{{- bos_token or '' }}
{%- for message in messages %}
{%- if message['role'] == 'system' %}
{{- message['content'] + '\n\n' }}
{%- elif message['role'] == 'user' %}
{%- if loop.first %}
{{- 'Below is an instruction that describes a task. ' }}
{{- 'Write a response that appropriately completes the request.\n\n' }}
{%- endif %}
{{- '### Instruction:\n' + message['content'] + '\n\n### Response:\n' }}
{%- else %}
{{- message['content'] + eos_token }}
{%- endif %}
{%- endfor %}"""
"""The prompt of Stanford Alpaca, as axolotl writes it around rows of type alpaca."""

_ALPACA_CHATS: Mapping[Kind, str] = {
    "axolotl": r"""{{- bos_token or '' }}
{%- for message in messages %}
{%- if message['role'] == 'system' and loop.first %}
{{- message['content'] }}
{%- elif message['role'] == 'user' %}
{{- '### Instruction:\n' + message['content'] }}
{%- elif message['role'] == 'assistant' %}
{{- '### Response:\n' + message['content'] + eos_token }}
{%- endif %}
{%- if not loop.last %}
{{- '\n\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '\n\n### Response:\n' }}
{%- endif %}""",
    "llamafactory": r"""{%- if messages[0]['role'] != 'system' %}
{{- 'Below is an instruction that describes a task. ' }}
{{- 'Write a response that appropriately completes the request.\n\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message['role'] == 'system' %}
{{- message['content'] }}
{%- elif message['role'] == 'user' %}
{{- '### Instruction:\n' + message['content'] + '\n\n### Response:\n' }}
{%- else %}
{{- message['content'] + eos_token + '\n\n' }}
{%- endif %}
{%- endfor %}""",
}
"""What each tool calls the template alpaca: axolotl's begins with no sentence, LLaMA-Factory's with no mark."""

_FAMILIES = {
    "cohere": ("command", "aya", "c4ai"),
    "command": ("command", "c4ai"),
    "deepseek": ("deepseek",),
    "exaone": ("exaone",),
    "falcon": ("falcon",),
    "gemma": ("gemma",),
    "glm": ("glm",),
    "granite": ("granite",),
    "intern": ("internlm",),
    "jamba": ("jamba",),
    "llama2": ("llama-2", "llama2"),
    "llama4": ("llama-4", "llama4"),
    "ministral": ("ministral", "mistral"),
    "mistral": ("mistral", "mixtral", "ministral", "codestral"),
    "olmo": ("olmo",),
    "phi": ("phi",),
    "qwen": ("qwen", "qwq"),
    "smollm": ("smollm",),
    "yi": ("yi-",),
    "zephyr": ("zephyr",),
}
"""How a template's name begins → a word in the names of the models that bring the same template along."""


def translate_template(work: Work, named: Found, name: str) -> None:
    """Put what `name` stands for into the draft; a template that only some models have is taken from such a model."""
    if name in ("chatml", "llama3"):
        work.draft.put("chat_template", name, named)
    elif name == "alpaca":
        work.draft.put("chat_template", _ALPACA_CHATS[work.kind], named, why="written out")
    elif is_models_own(work, name):
        work.draft.put("chat_template", "auto", named, why="the model's own")
        what = (
            f"is {work.tool}'s copy of a template ({name}); here the model's own is used, which says the same unless "
            "the model's makers changed it: compare preview.txt"
        )
        work.ledger.change(named, what)
    else:
        what = f"is {shown(name)}: no template of that name here, and {model_name(work)} is not known to bring it along"
        work.ledger.refuse(named, what, "write the template to a .jinja file and name its path, or chatml or llama3")


def is_models_own(work: Work, name: str) -> bool:
    beginnings = [beginning for beginning in _FAMILIES if name.startswith(beginning)]
    model = model_name(work).casefold()
    return any(word in model for beginning in beginnings for word in _FAMILIES[beginning])


def model_name(work: Work) -> str:
    given = work.draft.value("base_model")
    return str(given) if given else "the model"
