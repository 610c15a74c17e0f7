"""The documents tell the truth about names: files, tests and mutations they mention exist."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def sources():
    roots = [ROOT / name for name in ("src", "apps", "emulator", "tests")]
    return [path for root in roots for path in root.rglob("*") if path.suffix in (".cc", ".h", ".py")]


def test_links_point_at_files():
    broken = []
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
            if "://" not in target and not (document.parent / target).exists():
                broken.append(f"{document.name}: {target}")
    assert broken == []


def test_files_named_in_architecture_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    names = {name for name in re.findall(r"`([\w./]+\.(?:cc|h|py|txt|sh|mut))`", text)}
    assert len(names) > 15
    paths = [path.as_posix() for name in ("src", "apps", "tests") for path in (ROOT / name).rglob("*")]
    missing = [name for name in names if not any(path.endswith("/" + name) for path in paths)]
    assert missing == []


def test_tests_named_in_architecture_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([A-Z]\w+\.[A-Z]\w+)`", text))
    assert len(named) >= 10
    defined = set()
    for path in sources():
        if path.suffix == ".cc":
            for kind, suite, case in re.findall(r"\b(TEST|TEST_F|TEST_P)\(\s*(\w+)\s*,\s*(\w+)\s*\)", path.read_text()):
                defined.add(f"{suite}.{case}")
    assert sorted(named - defined) == []


def test_architecture_stays_readable():
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 400
