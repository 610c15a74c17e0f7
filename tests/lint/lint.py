#!/usr/bin/env python3
"""House rules that a machine can check: include order (layers.txt), style of files, formatting of C++.

Usage: lint.py [--root DIR] CHECK...    CHECK is includes, style or format. One line "file:line: what" per finding; exit 1 when any.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CPP = (".h", ".cc")
SKIPPED_FOLDERS = {".git", "build", "__pycache__", ".pytest_cache"}
TEXT = CPP + (".py", ".sh", ".md", ".txt", ".cmake", ".json", ".yml", ".ini", ".mut")
MAX_LINES = 600


class Finding:
    def __init__(self, path, line, text):
        self.path, self.line, self.text = path, line, text

    def __str__(self):
        return f"{self.path}:{self.line}: {self.text}"


def files_of(root):
    """Relative paths of the tree's files, without build output."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS)
        for name in sorted(names):
            yield Path(folder, name).relative_to(root)


def is_test(path):
    return path.parts[0] == "tests" or path.stem.endswith("_test") or path.stem.startswith("test_")


# --- include order ---------------------------------------------------------------------------------------------------


class Layers:
    """The rules of layers.txt. Raises ValueError, with the line, when the file itself is wrong."""

    def __init__(self, text):
        self.allowed, self.for_tests, self.vendors = {}, {}, {}
        for number, line in enumerate(text.splitlines(), 1):
            line = line.split("#")[0].strip()
            if line:
                self._add(number, line)

    def _add(self, number, line):
        name, colon, rest = line.partition(":")
        if not colon:
            raise ValueError(f"line {number}: no ':' in '{line}'")
        targets = rest.split()
        if name.startswith("vendor "):
            self.vendors[name.removeprefix("vendor ").strip()] = targets
            return
        unknown = [t for t in targets if t not in self.allowed]
        if unknown:
            raise ValueError(f"line {number}: {' '.join(unknown)} not above '{name}'")
        if name.endswith(" (tests)"):
            self.for_tests[name.removesuffix(" (tests)")] = targets
        elif name in self.allowed:
            raise ValueError(f"line {number}: '{name}' is listed twice")
        else:
            self.allowed[name] = targets

    def layer_of(self, folder):
        """Longest listed prefix of a folder such as 'transfer_engine/transport/tcp', or None."""
        while folder and folder != ".":
            if folder in self.allowed:
                return folder
            folder = os.path.dirname(folder)
        return None

    def may_include(self, source, target, in_test):
        return source == target or target in self.allowed[source] or (
            in_test and target in self.for_tests.get(source, ()))


def vendor_problem(layers, folder, header):
    for prefix, folders in layers.vendors.items():
        if header.startswith(prefix) and not any(folder == f or folder.startswith(f + "/") for f in folders):
            return f'vendor header "{header}" outside of {" and ".join(folders)}'
    return None


def include_problem(root, layers, path, folder, header):
    """Why a quoted include is wrong, or None."""
    source = layers.layer_of(folder)
    if source is None:
        return f"folder '{folder}' is not listed in tests/lint/layers.txt"
    if source == "apps" and (root / "apps" / header).is_file():
        return None
    if not (root / "src" / header).is_file():
        return f'"{header}" is not a path relative to src/'
    target = layers.layer_of(os.path.dirname(header))
    if target is None:
        return f"folder of \"{header}\" is not listed in tests/lint/layers.txt"
    if not layers.may_include(source, target, is_test(path)):
        return f'{source} must not include {target} ("{header}")'
    return None


def check_includes(root):
    layers = Layers((root / "tests/lint/layers.txt").read_text())
    for path in files_of(root):
        if path.parts[0] not in ("src", "apps") or path.suffix not in CPP:
            continue
        folder = path.parent.as_posix()
        folder = folder.removeprefix("src/") if path.parts[0] == "src" else folder
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if not match:
                continue
            quote, header = match.groups()
            problem = vendor_problem(layers, folder, header)
            if problem is None and quote == '"' and not any(header.startswith(v) for v in layers.vendors):
                problem = include_problem(root, layers, path, folder, header)
            if problem:
                yield Finding(path, number, problem)


# --- style -----------------------------------------------------------------------------------------------------------


def in_folders(*folders):
    return lambda path: path.parts[0] in folders


def product(path):
    return path.parts[0] in ("src", "apps", "python") and not is_test(path)


# (suffixes, where, pattern, message). Patterns are written so that this file does not match itself.
LINE_RULES = [
    (CPP, lambda p: product(p) and p.as_posix() != "src/common/env.cc", r"\bgetenv\s*\(",
     "environment is read in src/common/env.cc only"),
    (CPP + (".py",), lambda p: product(p) and p.parts[0] != "apps",
     r"\b(sleep_for|sleep_until|usleep|nanosleep|time\.sleep|asyncio\.sleep)\s*\(|(?<![\w.>])sleep\(",
     "no sleeping: wait on a condition with a deadline"),
    (CPP, in_folders("src", "apps"), r"\bstd::regex\b", "no std::regex"),
    (CPP, None, r"#\s*define\s+(private|protected)\b", "no redefined access"),
    (CPP, None, r"GTEST_SKIP\s*\(\s*\)\s*;", "a skip needs a reason"),
    ((".py",), None, r"pytest\.skip\s*\(\s*\)|mark\.skip\s*(\(\s*\))?\s*$", "a skip needs a reason"),
    (TEXT, None, r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b", "no unfinished work in the tree"),
    (TEXT, None, r"(?<![\w.}\-/])/(wo" r"rk|ro" r"ot|ho" r"me)\b(?![.\-])", "path of a particular machine"),
    (TEXT, None, r"[ \t]+$", "trailing whitespace"),
    (CPP, None, r"\t", "tab"),
]


def first_line_problem(lines, suffix):
    """The first line (after #!) has to be a comment of at least three words."""
    first = lines[1] if lines[0].startswith("#!") and len(lines) > 1 else lines[0]
    match = re.match(r'(?://|/\*)\s*(.*)' if suffix in CPP else r'(?:#(?!!)|r?""")\s*(.*)', first)
    if not match or len(match.group(1).split()) < 3 or re.search(r"copyright|SPDX", first, re.IGNORECASE):
        return "the first line must be a comment that says what the file is for"
    return None


def check_style(root):
    for path in files_of(root):
        suffix = path.suffix
        raw = (root / path).read_bytes()
        if not suffix and raw.startswith(b"#!"):
            suffix = ".sh"
        if suffix not in TEXT or not raw:
            continue
        try:
            lines = raw.decode().split("\n")
        except UnicodeDecodeError:
            yield Finding(path, 1, "not UTF-8")
            continue
        if lines[-1] == "":
            lines.pop()
        else:
            yield Finding(path, len(lines), "no newline at the end")
        if suffix in CPP + (".py", ".sh"):
            problem = first_line_problem(lines, suffix)
            if problem:
                yield Finding(path, 1, problem)
            if len(lines) > MAX_LINES:
                yield Finding(path, len(lines), f"{len(lines)} lines, {MAX_LINES} at most")
        rules = [(re.compile(p), m) for s, where, p, m in LINE_RULES if suffix in s and (where is None or where(path))]
        for number, line in enumerate(lines, 1):
            for pattern, message in rules:
                if pattern.search(line):
                    yield Finding(path, number, message)


# --- format ----------------------------------------------------------------------------------------------------------


def check_format(root):
    tool = shutil.which("clang-format-19")
    if tool is None:
        raise ValueError("clang-format-19 is not installed (scripts/install_deps.sh lint)")
    paths = [p.as_posix() for p in files_of(root) if p.suffix in CPP]
    # Without a .clang-format clang-format would fall back to another style.
    if not (root / ".clang-format").is_file():
        raise ValueError("no .clang-format at the root")
    if not paths:
        return
    result = subprocess.run([tool, "--dry-run", "--style=file", *paths], cwd=root, capture_output=True, text=True)
    seen = set()
    for path, line in re.findall(r"^(\S.*?):(\d+):\d+: warning:", result.stderr, re.MULTILINE):
        if path not in seen:
            seen.add(path)
            yield Finding(path, int(line), "not formatted (clang-format-19 -i)")
    if result.returncode != 0 and not seen:
        raise ValueError(f"clang-format-19 failed: {result.stderr.strip()}")


CHECKS = {"includes": check_includes, "style": check_style, "format": check_format}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2], help="tree to check")
    parser.add_argument("checks", nargs="+", choices=CHECKS, metavar="CHECK", help="includes, style, format")
    arguments = parser.parse_args()
    findings = []
    try:
        for name in arguments.checks:
            findings += CHECKS[name](arguments.root.resolve())
    except (ValueError, OSError) as error:
        sys.exit(f"lint: {error}")
    for finding in findings:
        print(finding)
    print(f"lint: {' '.join(arguments.checks)}: {len(findings)} finding(s)")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
