"""The twelve greedy prompts: four chats, four with tools, four plain texts."""

from __future__ import annotations

import json
from typing import Any

NEW_TOKENS = 64

CHAT = {
    "chat_fact": [{"role": "user", "content": "Which planet is the largest, and how large is it?"}],
    "chat_steps": [
        {"role": "system", "content": "You answer in short numbered steps."},
        {"role": "user", "content": "How do I change the tyre of a bicycle?"},
    ],
    "chat_turns": [
        {"role": "user", "content": "I have 3 apples and buy 4 more. How many do I have?"},
        {"role": "assistant", "content": "You have 7 apples."},
        {"role": "user", "content": "I give half of the first three away. Explain what happens now."},
    ],
    "chat_code": [
        {"role": "user", "content": "Write a Python function that reverses the words of a sentence."}
    ],
}

_TOOLS: list[dict[str, Any]] = [
    {
        "name": "get_weather",
        "description": "Current weather of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
    {
        "name": "set_alarm",
        "description": "Set an alarm",
        "parameters": {
            "type": "object",
            "properties": {"time": {"type": "string"}, "label": {"type": "string"}},
            "required": ["time"],
        },
    },
    {
        "name": "search_files",
        "description": "Find files by name and folder",
        "parameters": {
            "type": "object",
            "properties": {"pattern": {"type": "string"}, "folder": {"type": "string"}},
            "required": ["pattern"],
        },
    },
]
# In the text rather than through the template's own argument, which not every template has.
_TOOL_SYSTEM = (
    "You can call functions. Available functions:\n"
    + "\n".join(json.dumps(tool) for tool in _TOOLS)
    + '\nAnswer with one JSON object {"name": ..., "arguments": {...}} and nothing else.'
)

TOOLS = {
    f"tools_{name}": [{"role": "system", "content": _TOOL_SYSTEM}, {"role": "user", "content": text}]
    for name, text in {
        "weather": "What is the weather like in Lisbon right now?",
        "alarm": "Wake me at half past six tomorrow, and call it gym.",
        "files": "Where in my documents are the invoices as PDF?",
        "two": "Tell me the weather in Oslo, then set an alarm for 7 in the morning.",
    }.items()
}

PLAIN = {
    "plain_story": "The lighthouse had been dark for years when the keeper arrived. On the first evening",
    "plain_article": "Bread is one of the oldest prepared foods. Its history begins with",
    "plain_code": 'def read_lines(path):\n    """Return the lines of a file without their ends."""\n',
    "plain_list": "The days of the week are Monday, Tuesday, Wednesday,",
}


def prompt_ids(tokenizer: Any) -> dict[str, list[int]]:
    """Token ids of all twelve by name. Raises ``ValueError`` where the tokenizer has no chat template."""
    ids = {}
    for name, messages in (CHAT | TOOLS).items():
        ids[name] = list(
            tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )
    for name, text in PLAIN.items():
        ids[name] = list(tokenizer.encode(text))
    return ids
