r"""Caption cleaning of LlamaGen's T5 pipeline (its language/t5.py): text -> the text its models were trained to read.

A filter for captions from the web: lower case, no links, mark-up, file names, sizes or shop talk, and a blank after
every comma. Ordinary prompts lose little; `#1`, brackets, `/` and `&` vanish. Knows nothing of tokens.
"""

import html
import re
import warnings
from collections.abc import Sequence
from urllib.parse import unquote_plus

Rule = tuple[re.Pattern[str], str]

_DASHES = (
    r"\-\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40"
    r"\u301c\u3030\u30a0\ufe31\ufe32\ufe58\ufe63\uff0d"
)
_FILES = r"(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"
_HOST = r"[a-z0-9.\-]+\.(?:com|co|ru|net|org|edu|gov|it)[\w/\-]*\b/?(?!@)"


def _rules(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in pairs)


_LINKS = _rules((r"<person>", "person"), (rf"\b(?:(?:https?|www):(?:/{{1,3}}|[a-z0-9%])|{_HOST})", ""))

_SIGNS = _rules(
    (r"@\w+\b", ""),
    (r"[\u31c0-\u9fff]+", ""),  # the CJK blocks
    (rf"[{_DASHES}]+", "-"),
    (r"[`´«»“”¨]", '"'),
    (r"[‘’]", "'"),
    (r"&quot;?", ""),
    (r"&amp", ""),
    (r"\d{1,3}(?:\.\d{1,3}){3}", " "),  # addresses
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.{_FILES}", ""),
    (r"[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~)(\]\[}{|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)

_WORDS = _rules(
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),
    (r"(?:worldwide\s+)?(?:free\s+)?shipping", ""),
    (r"(?:free\s)?download(?:\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b{_FILES}(?:\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
    (r"\b\d+\.?\d*[xх×]\d+\.?\d*\b", ""),
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
)

_ENDS = _rules(
    (r"^[\"'](.+)[\"']$", r"\1"),
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
)


def clean(caption: str) -> str:
    """The caption as LlamaGen's scripts hand it to T5: cleaned twice."""
    return clean_once(clean_once(caption))


def clean_once(caption: str) -> str:
    """One pass of the cleaning."""
    from ftfy import fix_text

    text = _apply(_LINKS, unquote_plus(caption).strip().lower())
    text = _apply(_SIGNS, _without_markup(text))
    if len(re.findall(r"[-_]", text)) > 3:  # a slug rather than a few compounds
        text = re.sub(r"[-_]", " ", text)
    text = html.unescape(html.unescape(fix_text(text))).strip()
    return _apply(_ENDS, _apply(_WORDS, text)).strip()


def _apply(rules: Sequence[Rule], text: str) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


def _without_markup(text: str) -> str:
    from bs4 import BeautifulSoup, MarkupResemblesLocatorWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MarkupResemblesLocatorWarning)  # a prompt may well look like a file name
        return str(BeautifulSoup(text, "html.parser").text)
