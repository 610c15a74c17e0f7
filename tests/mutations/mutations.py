#!/usr/bin/env python3
"""Shows that the tests notice broken code: applies one-line breakages (*.mut here) one by one and expects a test to fail.

Each mutation is applied to a copy of the tree (build/mutations/tree), built there, and its tests are run. A mutation that no
test notices, that does not compile, or whose tests fail without it, is a failure of the run.
See "Mutations" in CONTRIBUTING.md for the format of a .mut file.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PYTHON = "/usr/bin/python3"
FIELDS = {"invariant", "file", "from", "to", "target", "tests", "pytest"}
REQUIRED = {"invariant", "file", "from", "to"}
TEST_TIMEOUT_S = 120  # one test; a mutation that makes a test hang is noticed by it
BUILD_TIMEOUT_S = 1800
SKIPPED_FOLDERS = {".git", "build", "__pycache__", ".pytest_cache"}


class MutationError(Exception):
    """Something is wrong with a mutation or the tree, not with the tests."""


@dataclass(frozen=True)
class Mutation:
    name: str
    invariant: int
    sentence: str
    file: str
    original: str
    replacement: str
    targets: tuple  # what has to be built for the tests
    label: str  # ctest label regex, or ""
    tests: str  # ctest name regex within the label, or ""
    pytest: str  # pytest node, or ""


def parse(path):
    """Reads one .mut file: lines "field: value"; '#' lines are comments."""
    fields = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        key, colon, value = line.partition(":")
        if not colon or key not in FIELDS:
            raise MutationError(f"{path}:{number}: expected one of {', '.join(sorted(FIELDS))}, got '{key}'")
        if key in fields:
            raise MutationError(f"{path}:{number}: second '{key}'")
        fields[key] = value.strip()
    missing = REQUIRED - fields.keys()
    if missing:
        raise MutationError(f"{path}: no {', '.join(sorted(missing))}")
    if ("target" in fields) == ("pytest" in fields):
        raise MutationError(f"{path}: needs either 'target' (a ctest program) or 'pytest' (a node)")
    invariant = re.fullmatch(r"(\d+)\s+(.+)", fields["invariant"])
    if not invariant:
        raise MutationError(f"{path}: 'invariant' is a number and a sentence, not '{fields['invariant']}'")
    if not fields["from"] or fields["from"] == fields["to"]:
        raise MutationError(f"{path}: 'from' must be a text that 'to' changes")
    target = fields.get("target", "")
    return Mutation(path.stem, int(invariant.group(1)), invariant.group(2), fields["file"], fields["from"], fields["to"],
                    (target,) if target else ("all",), f"^{re.escape(target)}$" if target else "",
                    fields.get("tests", ""), fields.get("pytest", ""))


def load(folder, patterns):
    """All mutations of the folder whose name contains one of the patterns."""
    paths = sorted(folder.glob("*.mut"))
    if not paths:
        raise MutationError(f"no .mut file in {folder}")
    chosen = [p for p in paths if not patterns or any(pattern in p.stem for pattern in patterns)]
    if not chosen:
        raise MutationError(f"no mutation is named like {' or '.join(patterns)}")
    return [parse(p) for p in chosen]


def mutated(mutation, root):
    """Text of the file with the breakage. The original text has to occur exactly once."""
    path = root / mutation.file
    if not path.is_file():
        raise MutationError(f"{mutation.name}: no file {mutation.file}")
    text = path.read_text()
    count = text.count(mutation.original)
    if count != 1:
        raise MutationError(f"{mutation.name}: {mutation.file} has {count} times '{mutation.original}', needs exactly 1")
    return text.replace(mutation.original, mutation.replacement)


def copy_tree(source, target):
    """Makes target equal to source, leaving files that are already equal untouched so that builds stay incremental."""
    wanted = set()
    for folder, folders, names in os.walk(source):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS]
        for name in names:
            path = Path(folder, name)
            relative = path.relative_to(source)
            wanted.add(relative)
            copy = target / relative
            if copy.is_file() and copy.read_bytes() == path.read_bytes():
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)  # new modification time, whatever the old one was
    for folder, folders, names in os.walk(target):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS]
        for name in names:
            if Path(folder, name).relative_to(target) not in wanted:
                Path(folder, name).unlink()


class Tree:
    """The copy in which mutations are built and tested."""

    def __init__(self, root, log_path):
        self.root = root
        self.build_dir = root / "build/release"
        self.log = open(log_path, "w", encoding="utf-8")
        self.jobs = str(os.cpu_count() or 1)

    def _run(self, command, timeout, env=None):
        """(exit code, output); a command that runs out of time is (None, output)."""
        self.log.write(f"\n$ {' '.join(map(str, command))}\n")
        process = subprocess.Popen(command, cwd=self.root, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        code = None
        try:
            output, _ = process.communicate(timeout=timeout)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # the session that this command is the leader of, nothing else
            output, _ = process.communicate()
        self.log.write(output)
        self.log.flush()
        return code, output

    def configure(self):
        # A breakage may leave something unused, which is not what it is judged by.
        command = ["cmake", "--preset", "release", "-DMC_WERROR=OFF"]
        if shutil.which("ccache"):
            command += ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
        code, output = self._run(command, BUILD_TIMEOUT_S)
        if code != 0:
            raise MutationError(f"the unmutated tree does not configure:\n{output[-3000:]}")

    def build(self, targets):
        code, output = self._run(["cmake", "--build", "build/release", "-j", self.jobs, "--target", *targets],
                                 BUILD_TIMEOUT_S)
        return code == 0, output

    def test(self, mutation):
        """(all passed, name of the first test that did not)."""
        if mutation.pytest:
            return self._pytest(mutation.pytest)
        command = ["ctest", "--test-dir", "build/release", "-L", mutation.label, "--no-tests=error", "--stop-on-failure",
                   "--output-on-failure", "--timeout", str(TEST_TIMEOUT_S), "-j", self.jobs]
        if mutation.tests:
            command += ["-R", mutation.tests]
        code, output = self._run(command, BUILD_TIMEOUT_S)
        if "No tests were found" in output:
            raise MutationError(f"{mutation.name}: no test matches target {mutation.targets[0]}, tests '{mutation.tests}'")
        first = re.search(r"Test +#\d+: (\S+) [^\n]*\*\*\*", output)  # Failed, Timeout, "aborted***Exception"
        return code == 0, first.group(1) if first else "(ctest ended without a result)"

    def _pytest(self, node):
        env = dict(os.environ, MC_BUILD_DIR=str(self.build_dir), PYTHONDONTWRITEBYTECODE="1")
        code, output = self._run([PYTHON, "-m", "pytest", "-x", "-q", f"--timeout={TEST_TIMEOUT_S}", node],
                                 BUILD_TIMEOUT_S, env)
        if code in (4, 5):
            raise MutationError(f"pytest cannot collect '{node}':\n{output[-2000:]}")
        first = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        return code == 0, first.group(1) if first else "(pytest ended without a result)"


def check_baseline(tree, mutations):
    """Without any breakage everything builds and the chosen tests pass."""
    targets = sorted({t for m in mutations for t in m.targets})
    built, output = tree.build(["all"] if "all" in targets else targets)
    if not built:
        raise MutationError(f"the unmutated tree does not build:\n{output[-3000:]}")
    done = set()
    for mutation in mutations:
        what = (mutation.label, mutation.tests, mutation.pytest)
        if what in done:
            continue
        done.add(what)
        passed, first = tree.test(mutation)
        if not passed:
            raise MutationError(f"{mutation.name}: {first} fails without any mutation")


def run_one(tree, mutation):
    """(verdict, detail) of one mutation; the copy is as before afterwards."""
    path = tree.root / mutation.file
    original = path.read_text()
    broken = mutated(mutation, tree.root)
    try:
        path.write_text(broken)
        built, output = tree.build(mutation.targets)
        if not built:
            error = re.search(r"error: .*", output)
            return "NOT BUILT", error.group(0) if error else "see the log"
        passed, first = tree.test(mutation)
        return ("SURVIVED", "no test failed") if passed else ("killed", first)
    finally:
        path.write_text(original)


def run(root, work, mutations):
    """Prints a line per mutation and a table; True when every mutation was noticed."""
    work.mkdir(parents=True, exist_ok=True)
    copy_tree(root, work / "tree")
    tree = Tree(work / "tree", work / "log.txt")
    print(f"mutations: building the unmutated tree and running its tests (log: {work / 'log.txt'})", flush=True)
    start = time.monotonic()
    tree.configure()
    check_baseline(tree, mutations)
    print(f"mutations: baseline passes after {time.monotonic() - start:.0f} s", flush=True)
    rows = []
    for index, mutation in enumerate(mutations, 1):
        start = time.monotonic()
        verdict, detail = run_one(tree, mutation)
        rows.append((mutation, verdict, detail, time.monotonic() - start))
        print(f"[{index}/{len(mutations)}] {mutation.name}: {verdict}, {detail} ({rows[-1][3]:.0f} s)", flush=True)
    print_table(rows)
    return all(verdict == "killed" for _, verdict, _, _ in rows)


def print_table(rows):
    width = max(8, *(len(m.name) for m, _, _, _ in rows))
    print(f"\n{'mutation':{width}}  inv  verdict     seconds  noticed by")
    for mutation, verdict, detail, seconds in sorted(rows, key=lambda row: (row[0].invariant, row[0].name)):
        print(f"{mutation.name:{width}}  {mutation.invariant:3}  {verdict:10}  {seconds:7.1f}  {detail}")
    count = lambda wanted: sum(verdict == wanted for _, verdict, _, _ in rows)  # noqa: E731
    invariants = sorted({m.invariant for m, _, _, _ in rows})
    print(f"\nmutations: {len(rows)} run, {count('killed')} killed, {count('SURVIVED')} survived, "
          f"{count('NOT BUILT')} not built; invariants {', '.join(map(str, invariants))}")


def main():
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only mutations whose file name contains one of these")
    parser.add_argument("--check", action="store_true", help="only check that every mutation still applies; build nothing")
    parser.add_argument("--root", type=Path, default=here.parents[1], help="tree to break copies of")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    try:
        mutations = load(root / "tests/mutations", arguments.names)
        for mutation in mutations:
            mutated(mutation, root)
        if arguments.check:
            print(f"mutations: {len(mutations)} apply")
            return 0
        return 0 if run(root, root / "build/mutations", mutations) else 1
    except MutationError as error:
        print(f"mutations: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
