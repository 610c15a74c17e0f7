#!/usr/bin/env python3
"""Tests of the lint: every rule is shown a tree that breaks it, and a clean tree gives no finding."""
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import lint  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
HEAD = "// What this file is for.\n"
# Spelled in pieces so that the lint does not find them here.
UNFINISHED = ["TO" "DO", "FIX" "ME", "XX" "X"]
MACHINE_PATHS = ["/wo" "rk/x", "/ro" "ot", "/ho" "me/me/x"]


class Tree(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        for path in ("tests/lint/layers.txt", ".clang-format"):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, self.root / path)
        self.write("src/common/a.h", HEAD)
        self.write("src/rpc/b.h", HEAD)
        self.write("src/master/m.h", HEAD)
        self.write("src/transfer_engine/transport/tcp/t.h", HEAD)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def findings(self, check):
        return [str(f) for f in lint.CHECKS[check](self.root)]

    def expect(self, check, path, text, *parts):
        """The file gives exactly one finding, which contains all parts; without the file there is none."""
        self.write(path, text)
        found = self.findings(check)
        self.assertEqual(len(found), 1, (text, found))
        for part in parts:
            self.assertIn(part, found[0])
        (self.root / path).unlink()

    def accept(self, check, path, text):
        self.write(path, text)
        self.assertEqual(self.findings(check), [], text)
        (self.root / path).unlink()


class Includes(Tree):
    def include(self, header):
        return f'{HEAD}#pragma once\n\n#include "{header}"\n'

    def test_downward_and_own_folder_pass(self):
        self.accept("includes", "src/rpc/c.cc", self.include("common/a.h"))
        self.accept("includes", "src/rpc/c.cc", self.include("rpc/b.h"))
        self.accept("includes", "src/transfer_engine/engine.cc", self.include("transfer_engine/transport/tcp/t.h"))
        self.accept("includes", "apps/x.cc", self.include("master/m.h"))

    def test_upward_arrow_is_named_with_its_line(self):
        self.expect("includes", "src/common/c.cc", self.include("rpc/b.h"), "src/common/c.cc:4:", "common must not include rpc")
        self.expect("includes", "src/tiered_cache/c.cc", self.include("rpc/b.h"), "must not include rpc")
        self.expect("includes", "src/master/c.cc", self.include("transfer_engine/transport/tcp/t.h"), "transfer_engine")

    def test_extra_arrow_is_for_test_files_only(self):
        self.accept("includes", "src/client/c_test.cc", self.include("master/m.h"))
        self.expect("includes", "src/client/c.cc", self.include("master/m.h"), "client must not include master")

    def test_unlisted_folder(self):
        self.write("src/misc/x.h", HEAD)
        self.expect("includes", "src/rpc/c.cc", self.include("misc/x.h"), "not listed")
        self.expect("includes", "src/misc/c.cc", self.include("common/a.h"), "not listed")

    def test_path_not_relative_to_src(self):
        self.expect("includes", "src/rpc/c.cc", self.include("b.h"), "not a path relative to src/")
        self.expect("includes", "src/rpc/c.cc", self.include("../common/a.h"), "not a path relative to src/")

    def test_vendor_header_only_in_its_folder(self):
        for line in ("#include <acl/acl.h>\n", '#  include "acl/acl_rt.h"\n'):
            self.accept("includes", "src/device/acl/table.cc", HEAD + line)
            self.expect("includes", "src/device/c.cc", HEAD + line, "src/device/c.cc:2:", "vendor header")
            self.expect("includes", "apps/c.cc", HEAD + line, "vendor header")
        self.expect("includes", "src/rpc/c.cc", HEAD + "#include <infiniband/verbs.h>\n", "vendor header")

    def test_layer_file_cannot_name_an_arrow_upwards(self):
        for text in ("a: b\nb:\n", "a:\na:\n", "a\n"):
            with self.assertRaises(ValueError):
                lint.Layers(text)


class Style(Tree):
    def test_clean_files_pass(self):
        self.accept("style", "src/common/env.cc", HEAD + 'const char* v = std::getenv("X");\n')
        self.accept("style", "src/common/x_test.cc", HEAD + "std::this_thread::sleep_for(1ms);\n")
        self.accept("style", "tests/x.py", '"""What this file is for."""\n')
        self.accept("style", "python/mooncake/__init__.py", "")
        self.accept("style", "x.sh", "#!/bin/sh\n# What this script is for.\n")
        self.accept("style", "x.md", "curl http://localhost/metrics/home\n")

    def test_first_line_says_what_the_file_is_for(self):
        self.expect("style", "src/common/c.h", "#pragma once\n", "src/common/c.h:1:", "first line")
        self.expect("style", "src/common/c.cc", "// Copyright 2024 by somebody\n", "first line")
        self.expect("style", "src/common/c.cc", "// helpers\n", "first line")
        self.expect("style", "tests/x.py", "import os\n", "first line")
        self.expect("style", "x.sh", "#!/bin/sh\nset -e\n", "first line")
        self.expect("style", ".ci/run", "#!/bin/sh\nset -e\n", "first line")

    def test_long_file(self):
        self.accept("style", "src/common/c.cc", HEAD + "//\n" * 599)
        self.expect("style", "src/common/c.cc", HEAD + "//\n" * 600, ":601:", "601 lines")

    def test_forbidden_lines(self):
        for line in ('getenv("X");', "std::this_thread::sleep_for(1ms);", "usleep(1);", "sleep(1);", "std::regex r;",
                     "#define private public", "GTEST_SKIP();", "int a; ", "int\ta;"):
            self.expect("style", "src/rpc/c.cc", f"{HEAD}{line}\n", "src/rpc/c.cc:2:")
        self.expect("style", "src/rpc/c_test.cc", HEAD + "#define private public\n", "redefined access")
        self.expect("style", "python/mooncake/c.py", '"""What this file is for."""\ntime.sleep(1)\n', "c.py:2:", "sleeping")
        self.expect("style", "tests/c.py", '"""What this file is for."""\n@pytest.mark.skip\n', "needs a reason")
        self.expect("style", "src/rpc/c.cc", HEAD + "int a;", "no newline")

    def test_unfinished_work_and_paths_of_a_machine(self):
        for word in UNFINISHED:
            self.expect("style", "CMakeLists.txt", f"# {word}: later\n", "CMakeLists.txt:1:", "unfinished")
        for path in MACHINE_PATHS:
            self.expect("style", "README.md", f"cd {path}\n", "README.md:1:", "particular machine")


@unittest.skipIf(shutil.which("clang-format-19") is None, "clang-format-19 is not installed")
class Format(Tree):
    def test_reports_the_line(self):
        self.accept("format", "src/common/c.cc", HEAD + "int a = 1;\n")
        self.expect("format", "src/common/c.cc", HEAD + "int  a=1;\n", "src/common/c.cc:2:", "not formatted")


class CommandLine(Tree):
    def test_exit_code_follows_the_findings(self):
        command = [sys.executable, str(ROOT / "tests/lint/lint.py"), "--root", str(self.root), "includes", "style"]
        run = lambda: lint.subprocess.run(command, capture_output=True, text=True)  # noqa: E731
        self.assertEqual(run().returncode, 0)
        self.write("src/common/c.cc", HEAD + '#include "rpc/b.h"\n')
        bad = run()
        self.assertEqual(bad.returncode, 1)
        self.assertIn("src/common/c.cc:2:", bad.stdout)


if __name__ == "__main__":
    unittest.main()
