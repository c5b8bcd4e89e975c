"""Chat templates as the families of models have them, in our own words, with tiny tokenizers that hold their marks.

Each does what the original does to roles, system messages, tools, white space and ends; wordings are shortened.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tiny

CHATML = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

LLAMA3 = """\
{%- for message in messages -%}
    {%- if loop.first -%}{{- bos_token -}}{%- endif -%}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""

LLAMA31 = """\
{{- bos_token -}}
{%- set today = strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' -%}
{%- set said, rest = '', messages -%}
{%- if messages[0].role == 'system' -%}{%- set said, rest = messages[0].content | trim, messages[1:] -%}{%- endif -%}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' -}}
{%- if tools is not none -%}{{- 'Environment: ipython\\n' -}}{%- endif -%}
{{- 'Today Date: ' + today + '\\n\\n' + said + '<|eot_id|>' -}}
{%- if tools is not none -%}
    {%- if not rest -%}{{- raise_exception('tools need a first user message') -}}{%- endif -%}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nUse these functions.\\n\\n' -}}
    {%- for tool in tools -%}{{- tool | tojson(indent=4) + '\\n\\n' -}}{%- endfor -%}
    {{- rest[0].content | trim + '<|eot_id|>' -}}
    {%- set rest = rest[1:] -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if message.role in ('tool', 'ipython') -%}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' -}}
    {%- elif 'tool_calls' in message -%}
        {%- set call = message.tool_calls[0].function -%}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' -}}
        {{- '<|eom_id|>' if builtin_tools is defined else '<|eot_id|>' -}}
    {%- else -%}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""

MISTRAL_V3 = """\
{%- set said, rest = '', messages -%}
{%- if messages[0].role == 'system' -%}{%- set said, rest = messages[0].content, messages[1:] -%}{%- endif -%}
{%- set asked = rest | selectattr('role', 'equalto', 'user') | list -%}
{{- bos_token -}}
{%- for message in rest -%}
    {%- if message.role == 'user' -%}
        {%- if tools is not none and message == asked[-1] -%}
            {{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' -}}
        {%- endif -%}
        {{- '[INST] ' + (said + '\\n\\n' if loop.last and said else '') + message.content + '[/INST]' -}}
    {%- elif message.tool_calls is defined -%}
        {{- '[TOOL_CALLS] [' -}}
        {%- for call in message.tool_calls -%}
            {%- if call.id | length != 9 -%}{{- raise_exception('an id has nine letters') -}}{%- endif -%}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') -}}
        {%- endfor -%}
        {{- ']' + eos_token -}}
    {%- elif message.role == 'assistant' -%}
        {{- ' ' + message.content | trim + eos_token -}}
    {%- elif message.role == 'tool' -%}
        {{- '[TOOL_RESULTS] {"content": ' + message.content + ', "call_id": "' + message.tool_call_id + '"}' -}}
        {{- '[/TOOL_RESULTS]' -}}
    {%- endif -%}
{%- endfor -%}
"""

MISTRAL_V7 = """\
{%- set said, rest = 'You are a model as of ' + strftime_now('%Y-%m-%d') + '.', messages -%}
{%- if messages[0].role == 'system' -%}{%- set said, rest = messages[0].content, messages[1:] -%}{%- endif -%}
{{- bos_token + '[SYSTEM_PROMPT]' + said + '[/SYSTEM_PROMPT]' -}}
{%- for message in rest -%}
    {%- if message.role == 'user' -%}{{- '[INST]' + message.content + '[/INST]' -}}
    {%- elif message.role == 'system' -%}{{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' -}}
    {%- elif message.role == 'assistant' -%}{{- message.content + eos_token -}}
    {%- else -%}{{- raise_exception('only user, system and assistant speak here') -}}{%- endif -%}
{%- endfor -%}
"""

GEMMA2 = """\
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}{{- raise_exception('System role not supported') -}}{%- endif -%}
{%- for message in messages -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('no turns') -}}{%- endif -%}
    {%- set role = 'model' if message.role == 'assistant' else message.role -%}
    {{- '<start_of_turn>' + role + '\\n' + message.content | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""

GEMMA3 = """\
{{- bos_token -}}
{%- set said, rest = '', messages -%}
{%- if messages[0].role == 'system' -%}{%- set said, rest = messages[0].content ~ '\\n\\n', messages[1:] -%}{%- endif %}
{%- for message in rest -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('no turns') -}}{%- endif -%}
    {%- set role = 'model' if message.role == 'assistant' else message.role -%}
    {{- '<start_of_turn>' + role + '\\n' + (said if loop.first else '') -}}
    {{- message.content | trim -}}
    {{- '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""

PHI3 = """\
{%- for message in messages -%}
    {{- '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- else -%}{{- eos_token -}}{%- endif -%}
"""

PHI4 = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '<|im_sep|>' + message.content + '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant<|im_sep|>' -}}{%- endif -%}
"""

PHI4_MINI = """\
{%- for message in messages -%}
    {%- if message.role == 'system' and tools -%}
        {{- '<|system|>' + message.content + '<|tool|>' + tools | tojson + '<|/tool|><|end|>' -}}
    {%- else -%}
        {{- '<|' + message.role + '|>' + message.content + '<|end|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- else -%}{{- eos_token -}}{%- endif -%}
"""

_QWEN_TOOLS = """\
{%- macro introduce(said, tools) -%}
    {{- '<|im_start|>system\\n' + said + '\\n\\n# Tools\\n<tools>' -}}
    {%- for tool in tools -%}{{- '\\n' + tool | tojson -}}{%- endfor -%}
    {{- '\\n</tools><|im_end|>\\n' -}}
{%- endmacro -%}
{%- macro call_all(calls, content) -%}
    {%- for call in calls -%}
        {{- '\\n' if content or not loop.first else '' -}}
        {%- set asked = call.function if call.function else call -%}
        {{- '<tool_call>\\n{"name": "' + asked.name + '", "arguments": ' + asked.arguments | tojson -}}
        {{- '}\\n</tool_call>' -}}
    {%- endfor -%}
{%- endmacro -%}
{%- macro answer_of_tool(content, is_first, is_last) -%}
    {{- '<|im_start|>user' if is_first else '' -}}
    {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' -}}
    {{- '<|im_end|>\\n' if is_last else '' -}}
{%- endmacro -%}
"""

QWEN25 = (
    _QWEN_TOOLS
    + """\
{%- set said = messages[0].content if messages[0].role == 'system' else 'You are a helpful assistant.' -%}
{%- if tools -%}{{- introduce(said, tools) -}}
{%- else -%}{{- '<|im_start|>system\\n' + said + '<|im_end|>\\n' -}}{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {{- answer_of_tool(message.content, messages[loop.index0 - 1].role != 'tool',
                           loop.last or messages[loop.index0 + 1].role != 'tool') -}}
    {%- elif message.role == 'assistant' and message.tool_calls -%}
        {{- '<|im_start|>assistant' + ('\\n' + message.content if message.content else '') + '\\n' -}}
        {{- call_all(message.tool_calls, '') + '<|im_end|>\\n' -}}
    {%- elif not (loop.first and message.role == 'system') -%}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
)

QWEN3 = (
    _QWEN_TOOLS
    + """\
{%- if tools -%}{{- introduce(messages[0].content if messages[0].role == 'system' else '', tools) -}}
{%- elif messages[0].role == 'system' -%}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- set last = namespace(query=messages | length - 1, is_sought=true) -%}
{%- for message in messages[::-1] -%}
    {%- if last.is_sought and message.role == 'user' and not (message.content.startswith('<tool_response>')
            and message.content.endswith('</tool_response>')) -%}
        {%- set last.is_sought = false -%}{%- set last.query = messages | length - 1 - loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
    {%- elif message.role == 'assistant' -%}
        {%- set content = message.content if message.content is string else '' -%}
        {%- set thoughts = message.reasoning_content if message.reasoning_content is string else '' -%}
        {%- if not thoughts and '</think>' in content -%}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
        {%- endif -%}
        {{- '<|im_start|>assistant\\n' -}}
        {%- if loop.index0 > last.query and (loop.last or thoughts) -%}
            {{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') -}}
        {%- else -%}
            {{- content -}}
        {%- endif -%}
        {%- if message.tool_calls -%}{{- call_all(message.tool_calls, content) -}}{%- endif -%}
        {{- '<|im_end|>\\n' -}}
    {%- elif message.role == 'tool' -%}
        {{- answer_of_tool(message.content, messages[loop.index0 - 1].role != 'tool',
                           loop.last or messages[loop.index0 + 1].role != 'tool') -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- endif -%}
"""
)


@dataclass(frozen=True)
class Family:
    template: str
    marks: tuple[str, ...]
    """Special tokens."""
    words: tuple[str, ...] = ()
    """Tokens of their own that are not special, as Qwen's <tool_call>."""
    bos: str | None = None
    """Put before plain text, too."""
    eos: str = "</s>"
    pad: str | None = None
    swallows_blanks: bool = False
    """Marks take the white space behind them, as Phi's do."""


_LLAMA = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
)
_MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]")
_MISTRAL = (*_MISTRAL, "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")
_GEMMA = ("<bos>", "<eos>", "<pad>", "<start_of_turn>", "<end_of_turn>")
_PHI = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool|>", "<|/tool|>")
_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_WORDS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

FAMILIES = {
    "chatml": Family(CHATML, ("<|im_start|>", "<|im_end|>"), eos="<|im_end|>", pad="<|im_end|>"),
    "llama-3": Family(LLAMA3, _LLAMA, bos="<|begin_of_text|>", eos="<|end_of_text|>"),
    "llama-3.1": Family(LLAMA31, _LLAMA, bos="<|begin_of_text|>", eos="<|eot_id|>", pad="<|eot_id|>"),
    "mistral-v3": Family(MISTRAL_V3, _MISTRAL, bos="<s>", eos="</s>", pad="</s>"),
    "mistral-v7": Family(MISTRAL_V7, _MISTRAL, bos="<s>", eos="</s>"),
    "gemma-2": Family(GEMMA2, _GEMMA, bos="<bos>", eos="<eos>", pad="<pad>"),
    "gemma-3": Family(GEMMA3, _GEMMA, bos="<bos>", eos="<eos>", pad="<pad>"),
    "phi-3": Family(PHI3, _PHI, eos="<|endoftext|>", pad="<|endoftext|>", swallows_blanks=True),
    "phi-4": Family(PHI4, ("<|endoftext|>", "<|im_start|>", "<|im_sep|>", "<|im_end|>"), eos="<|im_end|>"),
    "phi-4-mini": Family(PHI4_MINI, _PHI, eos="<|endoftext|>", pad="<|endoftext|>"),
    "qwen-2.5": Family(QWEN25, _QWEN, _QWEN_WORDS, eos="<|im_end|>", pad="<|endoftext|>"),
    "qwen-3": Family(QWEN3, _QWEN, _QWEN_WORDS, eos="<|im_end|>", pad="<|endoftext|>"),
}


@cache
def tokenizer_of(name: str) -> Any:
    """The tiny tokenizer of a family, with its template. Not to be changed: it is shared."""
    return build(FAMILIES[name])


def build(family: Family) -> Any:
    from tokenizers import AddedToken, Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_str(_without_marks())
    rstrip = family.swallows_blanks
    tokenizer.add_special_tokens([AddedToken(mark, rstrip=rstrip, normalized=False) for mark in family.marks])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in family.words])
    if family.bos:
        begin = processors.TemplateProcessing(
            single=f"{family.bos} $A", special_tokens=[(family.bos, tokenizer.token_to_id(family.bos))]
        )
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])
    named = {"bos_token": family.bos, "eos_token": family.eos, "pad_token": family.pad}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{name: token for name, token in named.items() if token is not None}
    )
    fast.chat_template = family.template
    return fast


@cache
def _without_marks() -> str:
    """A byte-level BPE of some 500 tokens, as JSON."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(tiny.sentences(), trainer)
    return tokenizer.to_str()


def save(name: str, folder: Path) -> Path:
    """The family's tokenizer in a folder, for a model that is prepared in a test."""
    tokenizer_of(name).save_pretrained(folder)
    return folder
