"""The base texts as documents (one tale or chapter each), and the rule that holds some of them out."""

import re
from pathlib import Path

TRAIN, VALID = 0.95, 0.97  # of each book: the first 95 % trains, the next 2 % is validation, the last 3 % is held out


def is_heading(paragraph):
    """One short line that names a chapter, or is in capitals, or is a title without a full stop; never dialogue."""
    if "\n" in paragraph or len(paragraph) > 70 or paragraph[0] in "\"'(*[":
        return False
    if re.match(r"(chapter|part|book)\b|\d+\b|[IVXL]+\.(\s|$)", paragraph, re.IGNORECASE):
        return True
    letters = [c for c in paragraph if c.isalpha()]
    if letters and all(c.isupper() for c in letters):
        return len(letters) > 2
    words = re.findall(r"[A-Za-z']+", paragraph)
    title = bool(words) and words[0][0].isupper() and all(w[0].isupper() for w in words if len(w) > 4)
    return title and paragraph[-1] not in ".!?,;:-\"'"


def documents(text):
    """A heading that follows no heading begins a document; its paragraphs stay one blank line apart."""
    found, after_heading = [], False
    for paragraph in (p.strip("\n") for p in re.split(r"\n\n+", text) if p.strip()):
        heading = is_heading(paragraph)
        if not found or (heading and not after_heading):
            found.append([])
        found[-1].append(paragraph)
        after_heading = heading
    return ["\n\n".join(paragraphs) for paragraphs in found]


def split(text):
    """Cuts a book at 95 % and 97 % of its characters, each cut moved on to the next blank line."""
    cuts = [0] + [text.index("\n\n", int(len(text) * share)) for share in (TRAIN, VALID)] + [len(text)]
    return [text[a:b] for a, b in zip(cuts, cuts[1:])]


def load(folder):
    """{"train" | "valid" | "held_out": documents}, the books in the order of their names."""
    parts = {"train": [], "valid": [], "held_out": []}
    for path in sorted((Path(folder) / "base").glob("*.txt")):
        for part, text in zip(parts.values(), split(path.read_text(encoding="utf-8"))):
            part += documents(text)
    if not parts["train"]:
        raise SystemExit(f"There are no texts in {folder}/base.")
    return parts


def size(docs):
    return sum(len(d.encode()) for d in docs)


def sources(folder):
    """One line for each base text, from the corpus' own README: title, author, dates, licence."""
    readme = Path(folder) / "README.md"
    lines = readme.read_text(encoding="utf-8").splitlines() if readme.exists() else []
    return [line.removeprefix("- `base/").replace(".txt`", "", 1) for line in lines if line.startswith("- `base/")]
