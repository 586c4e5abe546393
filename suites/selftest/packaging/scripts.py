"""The commands of shell scripts, as far as ours go: words, quotes, variables, and what joins two commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

ENDS = {"&&", "||", ";", "|"}
REDIRECTIONS = {">", ">>", "<"}
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::\+([^}]*))?[^}]*\})")


def commands(script: str, variables: Mapping[str, str]) -> list[list[str]]:
    """Each command's words, with the variables that are known put in; a word that comes to nothing is none."""
    lines = script.replace("\\\n", " ").splitlines()
    found = [command for line in lines for command in split(words(line))]
    return [[full for word in command if (full := put_in(word, variables))] for command in found]


def put_in(word: str, variables: Mapping[str, str]) -> str:
    """``word`` with ``$NAME``, ``${NAME}`` and ``${NAME:+this where it has a value}`` replaced."""

    def value(match: re.Match[str]) -> str:
        known = variables.get(match[1] or match[2], match[0])
        return put_in(match[3], variables) if known and match[3] else known

    return VARIABLE.sub(value, word)


def words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def split(line: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    rest = iter(line)
    for word in rest:
        if word in REDIRECTIONS:
            next(rest)
        elif word in ENDS:
            yield command
            command = []
        elif word != "!":
            command.append(word)
    if command:
        yield command
