"""How an option is declared and denied, in the languages that models answer in: patterns of words, no logic."""

from __future__ import annotations

import re
import unicodedata

_END = "(?![A-Za-zÀ-ÿ])"
_ANSWER = unicodedata.normalize(  # as the texts are
    "NFKC",
    r"(?:answer|answers|antwort|lösung|réponse|reponse|respuesta|resposta|risposta|antwoord|odpowied[źz]|odpověď|svar"
    r"|svaret|vastaus|válasz|răspunsul|cevap|yanıt|jawaban(?:nya)?|jawapan|đáp án|câu trả lời|ответ|відповідь|απάντηση"
    r"|الإجابة|الجواب|התשובה|उत्तर|উত্তর|答案|正解|答え|回答|解答|정답|답|คำตอบ)",
)
_CORRECT = (
    r"(?:\s+(?:choice|option|is|to\s+(?:this|the)\s+(?:question|problem)|finale?|correcta?|correcte|correta|corretta|richtige"
    rf"|final|here|seçenek|yang\s+benar|benar|đúng){_END}|\s+(?:सही|صحيحة|الصحيحة|الصحيح))*"
)
_IS = (
    r"(?:\s*(?:is|are|was|would\s+be|should\s+be|must\s+be|will\s+be|ist|lautet|wäre|est|es|sería|é|è|sarà|jest|brzmi|je"
    rf"|to|är|er|on|este|là|adalah|ialah){_END}"
    r"|\s*(?:είναι|هي|هو|היא|है|হল|是|为|為|应为|应该是|は|が|은|는|คือ|[:：=]|[-–—](?=\s))){0,3}"
)
_OPTION = (
    r"(?:option|choice|opción|opcion|opção|opzione|optie|opcja|alternative|alternativa|вариант|pilihan"
    r"|选项|選項|選択肢|选择|選擇|应选|故选|选|選|보기)"
)
_CHOOSE = (
    r"\b(?:choose|chose|pick|select|go with|going with|went with|elijo|wähle|choisis|scelgo|it is|it's|it’s|must be|so"
    r"|thus|hence|therefore)\b,?"
)

STRONG = re.compile(rf"(?:\b|(?<=[^\x00-\x7f])){_ANSWER}{_END}{_CORRECT}{_IS}|\bans\b{_IS}|####", re.IGNORECASE)
"""`The answer is`: what follows is declared."""
WEAK = re.compile(rf"(?:{_OPTION}{_IS}|{_CHOOSE})", re.IGNORECASE)
"""`Option`, `I choose`: what follows is declared where nothing is by stronger words."""
VERDICT = re.compile(
    r"(?<![A-Za-zÀ-ÿ'’])\(?([A-J])\)?\**\s+(?:is|ist|es|est|é|è|jest|är)\s+"
    r"(?:the\s+|die\s+|la\s+|a\s+|clearly\s+|therefore\s+)*"
    r"(?:correct|right|best|true|answer|richtig|correcta|correcte|correta|corretta|réponse|respuesta|resposta)"
)
"""`B is correct`."""
FILLER = (
    r"(?:[\s:：*_`\"'“”„«»$\\{(\[（【]|\\text|\\boxed|\\mathbf|\\textbf|\\mathrm"
    r"|(?:the|correct|right|best|letter|option|choice|la|el|le|die|der|das|den|de|il|a\s+letra|letra|lettre|lettera"
    r"|buchstabe|opción|opcion|opção|opzione|antwort|réponse|clearly|definitely|therefore|thus|probably|again"
    rf"|选项|選項|选|選){_END})*"
)
"""What may stand between such words and the letter."""

DENIED_BEFORE = re.compile(
    r"(?:\bnot|n't|n’t|\bnever|\bnein|\bnicht|\bnicht\s+die|\bkeine?|\bpas|\bno\s+es|\bno|\bnão(?:\s+é)?|\bnon(?:\s+è)?"
    r"|\bniet|\bnie|\binte|\bikke|\bне|\bbukan|\bkhông\s+phải(?:\s+là)?|不是|不选|不|并非|不選|非|ليست|ليس|\bneither|\bexcept"
    r"|\brather\s+than|\binstead\s+of|\bunlike|\bcannot\s+be|\bcan't\s+be)"
    r"(?:\s+(?:the|a|option|choice|answer|letter|die|la|el|é|è|es|be|actually|really|correct|simply|just))*"
    r"[\s(*\"'`:]*$",
    re.IGNORECASE,
)
"""The end of a text whose next word is denied."""
DISBELIEVED = re.compile(
    r"(?:\b(?:wrong|incorrect|false|doubt|reject|exclude|eliminate|rule\s+out|ruled\s+out|falsche|mauvaise|incorrecta)"
    r"|(?:n't|n’t|\bnot)\s+(?:think|believe|say|true|clear|certain|sure|the\s+case)"
    r"|错误的?|錯誤的?)"
    r"(?:\s+(?:that|if|the|correct|right|best|final|option|choice|answer))*[\s(*\"'`:]*$",
    re.IGNORECASE,
)
"""The end of a text that denies even what `the answer is` declares next."""
DENIED_HERE = re.compile(
    r"\s*(?:definitely |clearly |certainly )?(?:not|n't|n’t|isn't|isn’t|is not|nicht|pas|no es|no|não é|não|non è|non"
    rf"|niet|nie jest|nie|inte|ikke|не|bukan|không phải(?: là)?|不是|并不是|不可能是|不应该是|ليست|ليس"
    rf"|to nie|ei ole|nem|není|nu(?: este)?|δεν είναι|ไม่ใช่){_END}",
    re.IGNORECASE,
)
"""The beginning of a text that denies what follows: after `the answer is`, `not B`."""
DENIED_AFTER = re.compile(
    r"[)*\"'`\s]*(?:(?:is|are|was|seems|looks|would be|can|could)\s*"
    r"(?:n't|n’t|not|\snever|\s?incorrect|\s?wrong|\s?false|\s?out\b)"
    r"|cannot|no es|n'est pas|ist (?:nicht|falsch)|não é|non è|не\b|不是|不对|不正确|错"
    r"|नहीं|değil|,? which (?:is|was) (?:not|wrong|incorrect|false)|(?:is|seems|looks)\b[^.,!?\n]{0,30}\bbut"
    r" (?:is |was )?(?:not|wrong|incorrect|false)|ではない|ではありません|じゃない|[이가은는] ?아[니닙]|\s*\?)",
    re.IGNORECASE,
)
"""What follows a letter that is denied: `B is wrong`."""
CONDITION = re.compile(
    r"\b(?:if|unless|suppose|assuming|whether|were|wenn|falls|si|se|если)\b[^.!?\n]{0,30}$|如果[^。]{0,15}$",
    re.IGNORECASE,
)
"""The end of a text whose next words are a condition."""
BUT = re.compile(
    r"[^.!?\n。]{0,40}?(?:\b(?:but|instead|rather|sondern|sino|mais|mas|ma|utan)\b|而是)\s*"
    r"|[^.!?\n。]{0,40}?[;,—–-]\s*(?:it(?:'s|’s| is)\s)?\s*",
    re.IGNORECASE,
)
"""From a denied letter to the one that is declared in its place."""
JOIN = (
    r"(?:[)\]*.\s]*\(?(?:as well as|,|;|、|\||\+|&|/|and|or|und|oder|et|ou|y|o|e|i|и|или|和|或|と|または|か|또는|와|과)"
    r"(?:\s+(?:and|or|also|maybe|perhaps|possibly|option))*[\s(\[*]*|\s?(?:[-–—]|\.{3}|through|to)\s?)"
)
"""What joins two answers to one that is none."""
JOINED = re.compile(
    rf"(?:{JOIN}|[)\]*]*[ \t]+(?=[(\[*]*[A-J][)\]*.\s]*(?:\n|$)))"
    r"[(\[*]*([A-J])(?![A-Za-zÀ-ÿ'’]|\s+(?:is|are|was|has|does|cannot|can't)\b)"
)
"""From a letter to another of equal standing."""
ARTICLE = re.compile(
    r"\s+(?!because|since|as\b|is\b|and\b|or\b|which|with|for\b|due|so\b|but\b|if\b|by\b|that\b|in\b|on\b|weil|porque"
    r"|parce|car\b|da\b|perché|want|omdat)[a-zà-ÿ]"
)
"""What follows an A or I that is a word of its own: `A car`, `I computed`."""
