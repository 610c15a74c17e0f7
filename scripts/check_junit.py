#!/usr/bin/env python3
"""Refuses a JUnit report (of ctest or pytest) with no test that ran, and with --no-skips one with skipped or disabled tests."""
import argparse
import sys
import xml.etree.ElementTree as ElementTree


def full_name(case):
    """ctest repeats the name as class, gtest and pytest put there what is in front of it."""
    suite, name = case.get("classname") or "", case.get("name") or "?"
    return name if suite in ("", name) else f"{suite}.{name}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", help="JUnit XML file")
    parser.add_argument("--no-skips", action="store_true", help="a skipped, disabled or expected-to-fail test is a failure")
    parser.add_argument("--list-failed", action="store_true", help="only print the names of the failed tests, one a line")
    arguments = parser.parse_args()
    try:
        cases = list(ElementTree.parse(arguments.report).iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        sys.exit(f"check_junit: {error}")
    if arguments.list_failed:
        for case in cases:
            if case.find("failure") is not None or case.find("error") is not None:
                print(full_name(case))
        return 0
    # ctest marks a test that did not run in the status attribute, pytest (xfail too) with an element.
    skipped = [c.get("name") for c in cases if c.find("skipped") is not None or c.get("status") in ("notrun", "disabled")]
    if len(cases) == len(skipped):
        sys.exit(f"check_junit: no test ran ({len(skipped)} skipped) in {arguments.report}")
    if skipped and arguments.no_skips:
        sys.exit(f"check_junit: {len(skipped)} test(s) were skipped, which fails this run: {', '.join(skipped)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
