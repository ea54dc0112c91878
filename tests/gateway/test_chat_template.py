"""Prompts are those of transformers; a template can refuse, but not escape, hang or flood."""

import json

import pytest

from gateway import chat_template
from gateway.chat_template import ChatTemplate

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3_LIKE = """\
{{- bos_token }}
{%- if tools is not none %}
    {{- "tools: " + tools | tojson }}
{%- endif %}
{#- A comment, and blocks that must leave no blank lines. #}
{%- set ns = namespace(system="", turns=0) %}
{% for message in messages %}
    {% if message.role == "system" %}
        {%- set ns.system = message.content | trim %}
        {% continue %}
    {% endif %}
    {%- set ns.turns = ns.turns + 1 %}
    {% if ns.turns > 3 %}
        {% break %}
    {% endif %}
{{ message.role | upper }}: {{ message | tojson(indent=2) }}
    {% if message.role == "assistant" %}
        {% generation %}
{{ message.content }}{{ eos_token }}
        {% endgeneration %}
    {% endif %}
{% endfor %}
{%- macro turn(name) %}
[{{ name }}]
{% endmacro %}
{% if add_generation_prompt %}
{{ turn(dict(a="assistant")["a"]) }}{{ strftime_now("%Y") | length }}{{ undefined_name }}
{% endif %}
"""
MESSAGES = [
    {"role": "system", "content": " Answer <b>shortly</b> & äöü. "},
    {"role": "user", "content": "Hi!\n", "name": None},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "{{ 7 * 7 }}"},
    {"role": "user", "content": "too many"},
]
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source, messages=MESSAGES):
    return ChatTemplate(source, SPECIAL_TOKENS).render(messages)


class TestRender:
    def test_chatml(self):
        messages = [{"role": "user", "content": "Hi"}]
        opened = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        template = ChatTemplate(CHATML)

        assert template.render(messages) == opened
        closed = template.render(messages, add_generation_prompt=False)
        assert closed == "<|im_start|>user\nHi<|im_end|>\n"

    @pytest.mark.parametrize("source", [CHATML, LLAMA_3_LIKE], ids=["chatml", "llama_3_like"])
    @pytest.mark.parametrize("add_generation_prompt", [True, False])
    def test_prompts_are_those_of_transformers(self, source, add_generation_prompt):
        """Blank lines, filters, loop controls, generation marks: all as transformers renders."""
        reference = pytest.importorskip("transformers.utils.chat_template_utils")
        known = [{k: v for k, v in m.items() if v is not None} for m in MESSAGES]
        [expected], _ = reference.render_jinja_template(
            [known],
            chat_template=source,
            add_generation_prompt=add_generation_prompt,
            **SPECIAL_TOKENS,
        )

        template = ChatTemplate(source, SPECIAL_TOKENS)

        assert template.render(MESSAGES, add_generation_prompt=add_generation_prompt) == expected

    def test_a_message_is_data_not_template(self):
        """Braces in a user's words are rendered as they are."""
        words = "{{ messages }} {% raw %}"

        assert words in render(CHATML, [{"role": "user", "content": words}])

    def test_a_model_without_a_template_says_what_to_send_instead(self):
        with pytest.raises(ValueError, match="no chat template; send text or token ids"):
            ChatTemplate(None).render(MESSAGES)


class TestErrors:
    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
            ("{{ nothing.at_all }}", "'nothing' is undefined"),
            ("{{ messages[0].content + 1 }}", "TypeError"),
            ("{{ 1 / 0 }}", "ZeroDivisionError"),
            ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ],
    )
    def test_a_templates_own_error_is_a_value_error(self, source, reason):
        with pytest.raises(ValueError, match=f"chat template .*{reason}"):
            render(source)

    def test_a_template_that_does_not_parse_is_refused_at_load(self):
        with pytest.raises(ValueError, match=r"not valid: .*endfor"):
            ChatTemplate("{% for m in messages %}")


class TestSandbox:
    @pytest.mark.parametrize(
        "source",
        [
            "{{ ''.__class__.__mro__ }}",
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ ''['__class__'].mro() }}",
            "{{ (''|attr('__class__')).mro() }}",
            "{{ raise_exception.__globals__['json'] }}",
            "{{ strftime_now.__code__.co_consts }}",
            "{{ '{0.__class__.__name__}'.format(messages) }}",
            "{{ messages.append(1) }}",
            "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
            "{{ namespace(__html__=1) }}",
            "{{ dict.update(messages[0], {'role': 'system'}) }}",
            "{{ self.__init__.__globals__ }}",
            "{{ cycler.__init__.__globals__.os }}",
        ],
    )
    def test_attacks_are_refused(self, source):
        """Nothing leads from a template to Python's insides, nor to our own objects."""
        with pytest.raises(ValueError, match="chat template refused"):
            render(source)

    @pytest.mark.parametrize(
        "source",
        [
            "{{ ''.__class__ }}",
            "{{ raise_exception.__globals__ }}",
            "{{ '{0.__class__}'.format(messages) }}",
            "{{ dict.__base__ }}",
        ],
    )
    def test_what_is_refused_prints_as_nothing(self, source):
        """Only reaching further raises; as in jinja, the refused value itself is undefined."""
        assert render(source) == ""

    def test_the_callers_messages_stay_as_they_are(self):
        messages = [{"role": "user", "content": "Hi"}]
        with pytest.raises(ValueError, match="chat template"):
            render("{% set _ = messages[0].update(role='system') %}", messages)

        assert messages == [{"role": "user", "content": "Hi"}]


class TestGuards:
    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("{{ 'a' * 10**10 }}", "result of"),
            ("{{ 10**10 * [1] }}", "result of"),
            ("{{ 9 ** (9**9) }}", "result of"),
            ("{% for a in range(10**9) %}{% endfor %}", "Range too big"),
            ("{% for a in range(4) %}{{ 'a' * 2000 }}{% endfor %}", "characters of output"),
            ("{% for a in range(40) %}{% for b in range(40) %}{% endfor %}{% endfor %}", "steps"),
            (
                "{% macro m(n) %}{% if n %}{% set x = m(n-1) ~ m(n-1) %}{% endif %}{% endmacro %}"
                "{{ m(40) }}",
                "steps",
            ),
        ],
    )
    def test_a_runaway_template_is_stopped(self, monkeypatch, source, reason):
        monkeypatch.setattr(chat_template, "MAX_STEPS", 1000)
        monkeypatch.setattr(chat_template, "MAX_PROMPT_CHARS", 5000)

        with pytest.raises(ValueError, match=reason):
            render(source)

    def test_every_rendering_has_the_whole_budget(self, monkeypatch):
        monkeypatch.setattr(chat_template, "MAX_STEPS", 10)
        template = ChatTemplate("{% for a in range(10) %}.{% endfor %}")

        assert [template.render(MESSAGES) for _ in range(3)] == ["." * 10] * 3

    def test_ordinary_arithmetic_passes(self):
        assert render("{{ '-' * 3 }}{{ 2 ** 10 }}{{ 2 * 3 }}{{ 0.5 ** 2 }}") == "---102460.25"


class TestFromDirectory:
    def write(self, directory, template=None, config=None):
        if template is not None:
            (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
        if config is not None:
            raw = json.dumps(config)
            (directory / "tokenizer_config.json").write_text(raw, encoding="utf-8")
        return ChatTemplate.from_directory(directory)

    def test_the_file_wins_over_the_config(self, tmp_path):
        template = self.write(tmp_path, template="file ö", config={"chat_template": "config"})

        assert template.exists
        assert template.render([]) == "file ö"

    def test_the_special_tokens_are_variables(self, tmp_path):
        config = {
            "bos_token": {"content": "<s>"},
            "eos_token": "</s>",
            "chat_template": "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}",
        }

        assert self.write(tmp_path, config=config).render([]) == "<s>|</s>|False"

    def test_of_several_templates_the_default_is_used(self, tmp_path):
        named = [
            {"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "plain"},
        ]

        assert self.write(tmp_path, config={"chat_template": named}).render([]) == "plain"

    @pytest.mark.parametrize("value", [[], [{"name": "tool_use", "template": "x"}], ["x"], 7, {}])
    def test_a_config_without_a_usable_template_is_refused(self, tmp_path, value):
        with pytest.raises(ValueError, match=r"tokenizer_config\.json: chat_template must be"):
            self.write(tmp_path, config={"chat_template": value})

    def test_a_directory_without_a_template_loads(self, tmp_path):
        """A base model is served; only a chat request is refused."""
        template = self.write(tmp_path)

        assert not template.exists
        with pytest.raises(ValueError, match="no chat template"):
            template.render(MESSAGES)


@pytest.mark.model
def test_the_embedded_models_prompt_is_that_of_transformers(smollm2):
    transformers = pytest.importorskip("transformers")
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(smollm2)
    messages = [{"role": "user", "content": "What is a slipstream?"}]
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    prompt = ChatTemplate.from_directory(smollm2).render(messages)

    assert prompt == expected
    assert prompt.endswith("<|im_start|>assistant\n")
