"""From what a model replied to the question it wrote, or the reason why there is none.

Prompts ask for the bare question, since JSON and LaTeX do not go together: `\\f` and `\\t` are escapes in both. Models
answer in JSON all the same, escaped or not, in fences, between tags, after a thought; each is read for what it means.
"""

from __future__ import annotations

import re

KEYS = "question|rephrased_question|rewritten_question|new_question|rephrasing|rephrased|rewritten|problem|prompt|text"
_OBJECT = re.compile(rf'"(?:{KEYS})"\s*:\s*"(?P<text>(?:[^"\\]|\\.)*)(?P<end>"?)', re.DOTALL | re.IGNORECASE)
_TAG = re.compile(rf"<(?P<tag>{KEYS})>(?P<text>.*?)(?P<end></(?P=tag)>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"```\w*[ \t]*\n?(?P<text>.*?)(?P<end>```|\Z)", re.DOTALL)
_JSON_LIKE = re.compile(r"\A\s*(?:```(?:json)?\s*)?[{\[]\s*\"")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "/": "/"}
_NAMES = """
    bar begin beta bf big bigcap bigcup binom bmod bot boxed bullet
    fbox flat forall frac frown
    nabla natural ne nearrow neg neq newline ngeq ni nleq nmid not notin nparallel nu
    rangle rceil re real rfloor rho right rightarrow rightharpoonup rm root
    tan tanh tau tbinom text textbf textit textrm textstyle tfrac therefore theta tilde times to top triangle triangleq
    underbrace underline union uparrow uplus upsilon
"""
"""LaTeX commands that begin as an escape of JSON does."""
_COMMAND = re.compile(rf"(?:{'|'.join(sorted(_NAMES.split(), key=len, reverse=True))})(?![A-Za-z])")
_BACKSLASHES = re.compile(r"(?P<run>\\+)(?P<next>u[0-9a-fA-F]{4}|.|\Z)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]{2,}")
_EATEN = {"\x08": "b", "\x0c": "f", "\r": "r", "\t": "t", "\n": "n"}


def read_reply(content: str | None, finish: str | None, original: str) -> tuple[str, str | None]:
    """The question in a reply, and the reason against the reply (then the text is what there is of it).

    Args:
        content: the message's text.
        finish: why the model stopped, as servers say it: stop, length, content_filter, …
        original: the question that was to be rephrased.
    """
    text = (content or "").strip()
    if finish == "length":
        return text, "reply: cut off at max_tokens"
    if finish == "content_filter":
        return text, "reply: withheld by the server's content filter"
    if finish == "refusal":
        return text, "reply: the model refused"
    if not text:
        return "", "reply: empty"
    text, reason = _unwrap(_after_thought(text))
    text = restore(text, original).strip()
    if len(text) > 1 and text[0] + text[-1] in ('""', "“”") and text.count('"') in (0, 2):
        text = text[1:-1].strip()
    return text, reason


def _after_thought(text: str) -> str:
    return text.rpartition("</think>")[2].strip() if "</think>" in text else text


def _unwrap(text: str) -> tuple[str, str | None]:
    """The text inside tags, JSON or a fence."""
    if tag := _TAG.search(text):
        return tag["text"], None if tag["end"] else f"reply: <{tag['tag']}> is not closed"
    if found := list(_OBJECT.finditer(text)):
        if len(found) > 1:
            return text, f"reply: {len(found)} questions where one was asked for"
        return unescape(found[0]["text"]), None if found[0]["end"] else "reply: its JSON is cut short"
    if _JSON_LIKE.match(text):
        return text, "reply: JSON without a question in it"
    fence = _FENCE.search(text)
    if fence and "```" not in text[: fence.start()]:
        return fence["text"], None if fence["end"] else "reply: its fence is not closed"
    return text, None


def unescape(raw: str) -> str:
    """A JSON string's text, whether its LaTeX is escaped or not.

    A single backslash before a LaTeX command, or before what JSON does not escape, shows that backslashes stand for
    themselves; two are then a row separator unless a command follows. Without such a sign JSON's own rules hold.
    """
    bare = any(_shows_bare(match, raw) for match in _BACKSLASHES.finditer(raw))
    text = _BACKSLASHES.sub(lambda match: _unescaped(match, raw, bare), raw)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # halves of a pair come one by one


def _shows_bare(match: re.Match[str], raw: str) -> bool:
    if len(match["run"]) % 2 == 0:
        return False
    sign = match["next"][:1]
    if sign not in _ESCAPED and not (sign == "u" and len(match["next"]) == 5):
        return True
    return _COMMAND.match(raw, match.start("next")) is not None


def _unescaped(match: re.Match[str], raw: str, bare: bool) -> str:
    run, following = match["run"], match["next"]
    start = match.start("next")
    command = _COMMAND.match(raw, start)
    if bare and len(run) % 2 == 0:
        # two before a command are one, escaped; else they part rows
        named = command or _WORD.match(raw, start)
        return ("\\" if named and len(run) == 2 else "\\\\") + following
    kept = "\\" * (len(run) - 1 if bare else len(run) // 2)
    if len(run) % 2 == 0:
        return kept + following
    if command:
        return kept + "\\" + following
    if len(following) == 5:
        return kept + chr(int(following[1:], 16))
    return kept + (_ESCAPED.get(following) or "\\" + following)


def restore(text: str, original: str) -> str:
    """Put back the commands that a JSON reader ate on the way: form feed + `rac` is \\frac.

    A line break or a tab may be meant; it becomes a command only if the original has that very command.
    """

    def restored(match: re.Match[str]) -> str:
        command = _EATEN[match[0][0]] + match[1]
        known = _COMMAND.fullmatch(command) and (match[0][0] in "\x08\x0c" or f"\\{command}" in original)
        return f"\\{command}" if known else match[0]

    return re.sub(r"[\x08\x0c\r\t\n]([A-Za-z]+)", restored, text)
