"""How is any text written so that pdflatex shows it with nothing but its own fonts?

The result is ASCII. Letters with accents become commands, Greek and a few signs mathematics, and what LaTeX's fonts
have no shape for is spelled as its number, <U+4E2D>. Long names without spaces may be broken behind their punctuation,
or after every few letters, where a line would not hold them. `latex` lays tables out.
"""

import re
import unicodedata
from functools import cache

from k3ablate.report.sheet import TIE, spelled, tied, visible

BREAKABLE = 12  # letters; shorter words stay whole
PIECE = 8  # letters of a long word without punctuation
LONGEST = 17  # that is kept together
BREAK = r"\penalty200 "  # ends a line only where no space can
PUNCTUATION = re.compile(r"(?<=[-=_/+,.:;|&#@])(?=[^\d\s])|(?<=.)(?=<U\+)|(?<=[0-9A-F]>)(?=.)")  # numbers stay whole

ASCII = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\texttt{\char34}", "[": "{[}", "]": "{]}", "*": "{*}", "'": "{'}", "`": "{`}",
    "-": "{-}", "!": "{!}", "?": "{?}", ",": "{,}",
}  # fmt: skip
PLAIN = re.compile(r"\{([-,])\}(?![-,{])")  # alone these begin no ligature
SIGNS = {
    TIE: "~",
    "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "÷": r"$\div$", "−": "$-$", "≤": r"$\leq$", "≥": r"$\geq$",
    "≈": r"$\approx$", "≠": r"$\neq$", "∞": r"$\infty$", "→": r"$\rightarrow$", "←": r"$\leftarrow$", "µ": r"$\mu$",
    "²": r"\textsuperscript{2}", "³": r"\textsuperscript{3}", "–": "--", "—": "---", "‘": "`", "’": "'", "“": "``",
    "”": "''", "…": r"\ldots{}", "ß": r"\ss{}", "ø": r"\o{}", "Ø": r"\O{}", "æ": r"\ae{}", "Æ": r"\AE{}",
    "œ": r"\oe{}", "Œ": r"\OE{}", "ł": r"\l{}", "Ł": r"\L{}", "ı": r"\i{}", "§": r"\S{}",
}  # fmt: skip
ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u0304": "=", "\u0307": ".",
    "\u0306": "u", "\u030c": "v", "\u030b": "H", "\u0327": "c", "\u0323": "d", "\u0331": "b",
}  # fmt: skip
WIDTHS = dict.fromkeys("fijlrt.,:;'!|()[] ", 0.7) | dict.fromkeys("mwMW<>+=%@&±×", 1.6)  # of Computer Modern
CAPITAL = 1.4
CAPITALS = frozenset({"Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega"})
SMALL = frozenset(
    {"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lamda", "mu", "nu", "xi",
     "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega"}
)  # fmt: skip


def escaped(text: str) -> str:
    """The text in LaTeX, for a paragraph, a cell or a caption."""
    return " ".join(BREAK.join(map(_escaped_piece, pieces(word))) for word in _words(text))


def pieces(word: str) -> list[str]:
    """What a line must hold together of a word; together they are the word."""
    if len(word) <= BREAKABLE:
        return [word]
    return [part for chunk in PUNCTUATION.split(word) for part in _halved(chunk)]


def shown(text: str) -> str:
    """The characters that LaTeX will show."""
    return " ".join(_words(text))


def width(text: str) -> float:
    """About how wide LaTeX sets `shown` text, in digits; its fonts have narrow letters and wide ones."""
    return sum(WIDTHS.get(character, CAPITAL if character.isupper() else 1.0) for character in text)


def _words(text: str) -> list[str]:
    composed = unicodedata.normalize("NFC", tied(visible(text)))
    return "".join(character if command(character) else spelled(character) for character in composed).split(" ")


def _halved(chunk: str) -> list[str]:
    if len(chunk) < LONGEST or TIE in chunk:
        return [chunk]
    return [chunk[start : start + PIECE] for start in range(0, len(chunk), PIECE)]


def _escaped_piece(piece: str) -> str:
    return PLAIN.sub(r"\1", "".join(command(character) for character in piece))


@cache
def command(character: str) -> str:
    """One character in LaTeX; empty where its fonts have no shape for it."""
    if character.isascii() and character.isprintable():
        return ASCII.get(character, character)
    return SIGNS.get(character) or _accented(character) or _greek(character)


def _accented(character: str) -> str:
    letter, marks = unicodedata.normalize("NFD", character)[:1], unicodedata.normalize("NFD", character)[1:]
    if marks not in ACCENTS or not (letter.isascii() and letter.isalpha()):
        return ""
    stem = rf"\{letter}" if letter in "ij" else letter
    return rf"\{ACCENTS[marks]}{{{stem}}}"


def _greek(character: str) -> str:
    words = unicodedata.name(character, "").split()
    if words[:1] != ["GREEK"] or words[2:3] != ["LETTER"] or len(words) != 4:
        return ""
    name = words[3].lower()
    if words[1] == "CAPITAL" and name.title() in CAPITALS:
        return rf"$\{name.title()}$"
    if words[1] == "SMALL" and name in SMALL:
        return rf"$\{name.replace('lamda', 'lambda')}$"
    return ""
