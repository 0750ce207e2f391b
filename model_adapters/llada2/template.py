"""The role template of LLaDA2.0 and 2.1 (the same), for folders without a template."""

from __future__ import annotations

CHAT_TEMPLATE = (
    "{%- set names = {'user': 'HUMAN', 'assistant': 'ASSISTANT', 'system': 'SYSTEM'} -%}"
    "{%- set first = messages[0]['content'] + '\\n' if messages[0]['role'] == 'system' else '' -%}"
    "{{ '<role>SYSTEM</role>' + first + 'detailed thinking off<|role_end|>' }}"
    "{%- for message in (messages[1:] if first else messages) -%}"
    "{%- if message['role'] not in names -%}"
    "{{ raise_exception('role ' + message['role'] + ' is not known; allowed: system, user and assistant') }}"
    "{%- endif -%}"
    "{{ '<role>' + names[message['role']] + '</role>' + message['content'] + '<|role_end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<role>ASSISTANT</role>' }}{%- endif -%}"
)
"""The system turn always comes first and always ends in the thinking switch. There is no begin-of-text token."""
