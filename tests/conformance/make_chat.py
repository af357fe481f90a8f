"""Writes tests/conformance/chat/: a small vocabulary and `expected.json`, what transformers makes of conversations with chat templates
in the style of published ones (ChatML, Llama 3, Gemma, Mistral, Qwen) and with what templates take from Python.

    python3 -m venv venv && venv/bin/pip install transformers==4.57.1 tokenizers jinja2
    venv/bin/python tests/conformance/make_chat.py

src/engine/model/chat/tests.rs renders each and compares texts and ids. The same script and versions write the same bytes.
"""

import datetime
import json
import os

import jinja2
import tokenizers
import transformers
from transformers.utils import chat_template_utils

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat")

SPECIAL = [
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|head|>", "<|/head|>", "<|turn|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]",
    "<bos>",
]

TEMPLATES = {
    "chatml": """\
{% if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nYou answer.<|im_end|>\\n' }}
{% endif %}
{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{% endif %}
""",
    "llama-3": """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "1 Jan 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set told = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set told = "" %}
{%- endif %}
{{- "<|head|>system<|/head|>\\n\\nToday is " + date_string + ".\\n" + told + "<|turn|>" }}
{%- for m in messages %}
    {%- if not (m.role == 'tool' or 'tool_calls' in m) %}
        {{- '<|head|>' + m['role'] + '<|/head|>\\n\\n' + m['content'] | trim + '<|turn|>' }}
    {%- else %}
        {{- raise_exception("tools are not " ~ "known: " ~ m.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\\n\\n' }}
{%- endif %}
""",
    "gemma": """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('user and assistant take turns') }}
{% endif %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
""",
    "mistral": """\
{%- if messages[0]["role"] == "system" %}
  {%- set system_message = messages[0]["content"] %}
  {%- set loop_messages = messages[1:] %}
{%- else %}
  {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(turns=0) %}
{{- bos_token }}
{%- for message in loop_messages %}
  {%- if message["role"] == "user" %}
    {%- set ns.turns = ns.turns + 1 %}
    {%- if loop.last and system_message is defined %}
      {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
    {%- else %}
      {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- endif %}
  {%- elif message["role"] == "assistant" %}
    {{- " " + message["content"]|trim + eos_token }}
  {%- else %}
    {{- raise_exception("only user and assistant, after turn " + ns.turns|string) }}
  {%- endif %}
{%- endfor %}
""",
    "qwen": """\
{%- set ns = namespace(last=messages|length - 1, looking=true) %}
{%- for m in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.looking and m.role == "user" and m.content is string and not (m.content.startswith('<made>') and m.content.endswith('</made>')) %}
        {%- set ns.looking = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or (not loop.last and thought)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "python": """\
{%- macro shown(m, more=none) -%}
{{ m.role.upper() }}({{ m['content']|length }}){{ ' ' ~ more if more is not none }}
{%- endmacro -%}
{% for m in messages %}
{% if m.role == 'tool' %}{% continue %}{% endif %}
{% if loop.index > 3 %}{% break %}{% endif %}
{{ shown(m) }} {{ shown(m, loop.index) }} {{ m|tojson }}
{% generation %}
{{ m.content.replace('o', '0').title() }}|{{ m.content.split()|join(',') }}|{{ m.get('name', 'nobody') }}
{%- endgeneration %}

{% endfor %}
{{ [true, false, none, 1, 1.5, 'it\\'s', {'a': [1, 2]}] }} {{ true }} {{ none }} {{ 7 // 2 }} {{ 7 / 2 }} {{ -7 % 3 }} {{ 2 ** 5 }}
{{ {'b': 1, 'a': ['é', '<&>', none, true]}|tojson }}
{{ {'b': 1, 'a': ['é', {}, []]}|tojson(indent=2) }}
{{ {'b': 1, 'a': '"\\\\'}|tojson(sort_keys=true, separators=(',', ':')) }} {{ 'é'|tojson(ensure_ascii=true) }}
{% for key, value in {'z': 1, 'a': 2}.items() %}{{ key }}={{ value }}{{ ',' if not loop.last }}{% endfor %}

{% if tools is not none %}tools{% else %}no tools{% endif %} {{ nothing }}{{ nothing is defined }} {{ messages[-1].content[:3] }}
{{ '%s and %d' % ('this', 4) if false else 'that' }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }}
{{ messages|map(attribute='role')|unique|join(' ') }} {{ 'x' in 'xyz' }} {{ ' a '.strip() ~ 'b' }} {{ ('a', 'b')|last }} {{ 'a b'.capitalize() }}
""",
}

CONVERSATIONS = [
    [("user", "Hello, who are you?")],
    [("system", "  You are kind. "), ("user", "Say hi.")],
    [("user", " leading and trailing \n"), ("assistant", "Well, hello!\n"), ("user", "naïve café, 東京 🙂")],
    [("system", "Be brief."), ("user", "a"), ("assistant", "<think>\nhm\n</think>\n\nb"), ("user", "c"), ("assistant", "<think>d</think>e")],
    [("user", "a"), ("user", "b")],
    [("user", "<made>x</made>"), ("tool", "42"), ("assistant", "")],
    [("user", "3 < 4 | 5 > 4 <| x |> im_end 'quoted' \"twice\" {{ 1 }} {% if %}")],
]


class Noon(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 31, 12, 0, 0)


def vocabulary():
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=True)
    t.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, show_progress=False, special_tokens=SPECIAL,
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
    )
    t.train_from_iterator([text for talk in CONVERSATIONS for _, text in talk] + list(TEMPLATES.values()), trainer)
    t.add_tokens(["<think>", "</think>"])
    return t


def main():
    os.makedirs(HERE, exist_ok=True)
    chat_template_utils.datetime = Noon
    fast = vocabulary()
    with open(os.path.join(HERE, "tokenizer.json"), "w") as f:
        json.dump(json.loads(fast.to_str()), f, indent=1, ensure_ascii=False)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>", eos_token="</s>")
    cases = []
    for name, template in TEMPLATES.items():
        for talk in CONVERSATIONS:
            for answer in (True, False):
                messages = [{"role": role, "content": content} for role, content in talk]
                case = {"template": name, "messages": messages, "answer": answer}
                how = dict(chat_template=template, add_generation_prompt=answer)
                try:
                    case["text"] = tokenizer.apply_chat_template(messages, tokenize=False, **how)
                    case["ids"] = list(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **how))
                except jinja2.exceptions.TemplateError as e:
                    case["refused"] = str(e)
                cases.append(case)
    expected = {
        "versions": {m.__name__: m.__version__ for m in (transformers, tokenizers, jinja2)},
        "tokens": {"bos_token": "<s>", "eos_token": "</s>"},
        "noon": 1769860800,
        "templates": TEMPLATES,
        "cases": cases,
    }
    with open(os.path.join(HERE, "expected.json"), "w") as f:
        json.dump(expected, f, indent=1, ensure_ascii=False)
        f.write("\n")


main()
