#!/usr/bin/env python3
"""Tests of the mutation runner on a small project whose one test checks a file for a word."""
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

RUNNER = Path(__file__).resolve().parent / "mutations.py"
CMAKE = """\
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES NONE)
enable_testing()
add_custom_target(word_test COMMAND grep -q valid ${CMAKE_SOURCE_DIR}/word.txt)
add_test(NAME Word.IsGood COMMAND grep -q good ${CMAKE_SOURCE_DIR}/word.txt)
set_tests_properties(Word.IsGood PROPERTIES LABELS word_test)
"""
PRESETS = """\
{"version": 6, "configurePresets": [
  {"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/release"}]}
"""


class Runner(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        (self.root / "tests/mutations").mkdir(parents=True)
        (self.root / "CMakeLists.txt").write_text(CMAKE)
        (self.root / "CMakePresets.json").write_text(PRESETS)
        (self.root / "word.txt").write_text("valid and good\nneutral\ntwice twice\n")

    def mutation(self, name, original, replacement, extra="target: word_test\n"):
        (self.root / f"tests/mutations/{name}.mut").write_text(
            f"# Why.\ninvariant: 3 A sentence.\nfile: word.txt\nfrom: {original}\nto: {replacement}\n{extra}")

    def run_it(self, *options):
        result = subprocess.run([sys.executable, str(RUNNER), "--root", str(self.root), *options],
                                capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr

    def test_noticed_mutations_pass_and_the_tree_stays_as_it_was(self):
        self.mutation("a", "good", "bad")
        self.mutation("b", "and good", "", "target: word_test\ntests: Word\n")
        code, output = self.run_it()
        self.assertEqual(code, 0, output)
        self.assertIn("2 run, 2 killed, 0 survived, 0 not built; invariants 3", output)
        self.assertIn("Word.IsGood", output)
        self.assertIn("valid and good", (self.root / "word.txt").read_text())
        self.assertIn("valid and good", (self.root / "build/mutations/tree/word.txt").read_text())

    def test_survivor_fails_the_run(self):
        self.mutation("killed", "good", "bad")
        self.mutation("survivor", "neutral", "changed")
        code, output = self.run_it()
        self.assertEqual(code, 1, output)
        self.assertIn("survivor: SURVIVED", output)
        self.assertIn("2 run, 1 killed, 1 survived", output)
        self.assertEqual(self.run_it("killed")[0], 0)

    def test_mutation_that_does_not_build_fails_the_run(self):
        self.mutation("a", "valid", "broken")
        code, output = self.run_it()
        self.assertEqual(code, 1, output)
        self.assertIn("1 not built", output)

    def test_tests_that_fail_without_mutation_are_an_error(self):
        (self.root / "word.txt").write_text("valid\nneutral\n")
        self.mutation("a", "neutral", "changed")
        code, output = self.run_it()
        self.assertEqual(code, 2, output)
        self.assertIn("fails without any mutation", output)

    def test_no_matching_test_is_an_error(self):
        self.mutation("a", "good", "bad", "target: word_test\ntests: NoSuchTest\n")
        code, output = self.run_it()
        self.assertEqual(code, 2, output)
        self.assertIn("no test matches", output)

    def test_check_wants_the_text_exactly_once(self):
        self.mutation("a", "good", "bad")
        self.assertEqual(self.run_it("--check")[0], 0)
        for text, count in (("absent", 0), ("twice", 2)):
            self.mutation("a", text, "x")
            code, output = self.run_it("--check")
            self.assertEqual(code, 2)
            self.assertIn(f"{count} times", output)

    def test_malformed_files_are_refused(self):
        for extra in ("", "target: t\npytest: n\n", "colour: red\n", "target: t\ntarget: t\n", "target: t\nto: y\n"):
            self.mutation("a", "good", "bad", extra)
            self.assertEqual(self.run_it("--check")[0], 2, extra)
        self.mutation("a", "good", "good")
        self.assertEqual(self.run_it("--check")[0], 2)
        (self.root / "tests/mutations/a.mut").unlink()
        self.assertEqual(self.run_it("--check")[0], 2)


if __name__ == "__main__":
    unittest.main()
