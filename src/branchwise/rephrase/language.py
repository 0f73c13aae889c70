"""Which language a text is in, as far as its letters and its commonest words tell."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

_COMMON = {
    "English": "the of and is are to what how many if each find for that from with by has was",
    "German": "der die das und ist sind wie viele wenn jede finde für dass von mit hat ein eine nicht zu",
    "French": "le la les des et est sont combien si chaque trouver pour que avec du une dans quel qui sur",
    "Spanish": "el los las de y es son cuántos cuántas si cada para que con una en cuál qué por del",
    "Italian": "il gli delle di e è sono quanti quante se ogni per che con una nel quale della trova dei",
    "Portuguese": "o os as do da e é são quantos quantas se cada para que com uma em qual não dos",
    "Dutch": "de het een van en is zijn hoeveel als elke voor dat met niet op wat wordt vind hoe aan",
}
_WORDS = {name: set(words.split()) for name, words in _COMMON.items()}
_STOP = (
    "that this with have from what many much they them their there these those will would which when where were been "
    "into than then each every some also only both after before find determine calculate compute total number does "
    "given value how can you are the and for has had his her its was not all"
)
_STOPPED = frozenset(_STOP.split())


def language(text: str) -> str | None:
    """The script where it is not Latin, else the language by its commonest words; None where neither is clear."""
    prose = re.sub(r"\$[^$]*\$|\\[A-Za-z]+", " ", text)
    scripts = Counter(_script(c) for c in prose if c.isalpha())
    if not scripts:
        return None
    script, count = scripts.most_common(1)[0]
    if script != "LATIN":
        return script.title() if count > 0.5 * sum(scripts.values()) else None
    words = re.findall(r"[^\W\d_]+", prose.casefold())
    hits = Counter({name: sum(word in known for word in words) for name, known in _WORDS.items()})
    (best, most), (_, second) = hits.most_common(2)
    return best if most >= 3 and most >= 1.5 * second else None


def _script(letter: str) -> str:
    return unicodedata.name(letter, "unknown").split()[0]


def stems(text: str) -> set[str]:
    """Beginnings of the words that carry a text's content, names among them."""
    words = re.findall(r"[^\W\d_]{3,}", re.sub(r"\\[A-Za-z]+", " ", text).casefold())
    unspaced = [word for word in words if word[0] >= "\u2e80"]  # Chinese and kin, where pairs of signs stand for words
    pairs = {word[i : i + 2] for word in unspaced for i in range(len(word) - 1)}
    return pairs | {word[:5] for word in words if word not in _STOPPED and word[0] < "\u2e80"}
