#!/usr/bin/env python3
"""Runs clang-tidy-19 over the sources of src/ and apps/ that the release build compiles; any warning fails."""
import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE_TIMEOUT_S = 300


def sources(build_dir, names):
    """Sources in the compilation database, without tests: gtest's macros cost most of the time and find nothing."""
    with open(build_dir / "compile_commands.json", encoding="utf-8") as database:
        files = sorted({Path(entry["file"]).resolve() for entry in json.load(database)})
    for file in files:
        if not file.is_relative_to(ROOT) or file.stem.endswith("_test"):
            continue
        relative = file.relative_to(ROOT)
        if relative.parts[0] in ("src", "apps") and (not names or any(n in str(relative) for n in names)):
            yield relative


def tidy(build_dir, path):
    """(path, exit code, what clang-tidy said, seconds)"""
    start = time.monotonic()
    # The compiler's own warnings are GCC's business here; clang's differ and are not asked for.
    command = ["clang-tidy-19", "--quiet", "-p", str(build_dir), "--extra-arg=-Wno-error", "--extra-arg=-Wno-everything",
               str(path)]
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=FILE_TIMEOUT_S)
        code, text = result.returncode, result.stdout or (result.stderr if result.returncode else "")
    except subprocess.TimeoutExpired:
        code, text = 1, f"{path}: clang-tidy took more than {FILE_TIMEOUT_S} s"
    return path, code, text.strip(), time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only files whose path contains one of these")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build/release")
    arguments = parser.parse_args()
    if shutil.which("clang-tidy-19") is None:
        sys.exit("clang_tidy: clang-tidy-19 is not installed (scripts/install_deps.sh lint)")
    try:
        files = list(sources(arguments.build_dir, arguments.names))
    except OSError as error:
        sys.exit(f"clang_tidy: {error}; configure first: cmake --preset release")
    if not files:
        sys.exit("clang_tidy: no file to check")
    failed = 0
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = [pool.submit(tidy, arguments.build_dir, file) for file in files]
        for done, run in enumerate(concurrent.futures.as_completed(runs), 1):
            path, code, text, seconds = run.result()
            failed += code != 0
            print(f"[{done}/{len(files)}] {path} ({seconds:.0f} s){'' if code == 0 else ': FAILED'}", flush=True)
            if code != 0:
                print(text, flush=True)
    print(f"clang_tidy: {len(files)} files, {failed} with findings, {time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
