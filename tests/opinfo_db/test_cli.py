"""The command: what ``check`` finds and prints, its exit codes, and ``list``."""

from __future__ import annotations

import io
import math
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline
from rich.console import Console

from opinfo_db.__main__ import main
from opinfo_db.checks.contract import Difference
from opinfo_db.cli.check import Failure, Report, Row, check_entry
from opinfo_db.cli.render import print_report
from opinfo_db.cli.target import TargetError, load_entry


def report_of(name: str, *samples: str) -> Report:
    return check_entry(load_entry(f"checked_functions:{name}", samples))


def results(report: Report) -> dict[str, str]:
    return {row.name: row.result for row in report.checks}


def run_main(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    return main(arguments, Console(file=out, width=100)), out.getvalue()


def test_a_right_function_passes() -> None:
    report = report_of("Cube")
    assert not report.failed
    assert {row.name: row.result for row in report.rules} == {
        "backward": "pass",
        "jvp": "pass",
        "vmap": "derived",
    }
    found = results(report)
    assert (found["vjpvjp"], found["vmapvjp"], found["errors"]) == ("pass", "derived", "none")
    assert report.assertions > 200


def test_the_first_failing_sample_and_both_values() -> None:
    """At zero the wrong sign does not show, so it is the second sample that fails."""
    report = report_of("WrongSign")
    assert report.failed
    (failure,) = [row.failure for row in report.checks if row.name == "vjp"]
    assert failure is not None
    assert failure.case == "sample1"
    assert failure.difference is not None
    expected, actual = failure.difference.expected, failure.difference.actual
    torch.testing.assert_close(actual, -expected)
    assert failure.difference.amount == pytest.approx(2 * abs(float(expected)))


def test_a_wrong_second_derivative_fails_there_only() -> None:
    found = results(report_of("WrongSecond"))
    assert (found["vjp"], found["vmapvjp"]) == ("pass", "derived")
    assert (found["vjpvjp"], found["vmapvjpvjp"]) == ("fail", "fail")


def test_once_differentiable_is_no_failure() -> None:
    report = report_of("Once")
    found = results(report)
    assert not report.failed
    assert (found["vjp"], found["vjpvjp"], found["jvpvjp"]) == ("pass", "missing", "missing")


def test_a_function_of_torch_is_adopted() -> None:
    report = report_of("Bare", "(torch.randn(3), 3)", "(torch.randn(2, 2), 2)")
    assert not report.failed
    assert [row.result for row in report.rules] == ["pass", "derived", "derived"]
    found = results(report)
    assert (found["vjpvjp"], found["vmapjvp"]) == ("pass", "derived")


def test_what_no_rule_gives_is_missing() -> None:
    report = report_of("ForwardOnly", "torch.randn(3)")
    assert not report.failed
    assert [row.result for row in report.rules] == ["missing", "missing", "derived"]
    found = results(report)
    assert (found["forward"], found["vmap"]) == ("pass", "derived")
    assert (found["vjp"], found["vmapjvp"], found["gradcheck"]) == ("missing",) * 3


def test_a_callable_has_no_rules() -> None:
    report = report_of("scaled", "(torch.randn(3), torch.randn(3))")
    assert report.rules == ()
    assert set(results(report).values()) == {"pass", "none"}


def samples_of(*expressions: str) -> list[tuple[object, ...]]:
    entry = load_entry("checked_functions:scaled", expressions)
    return [s.args for s in entry.sample_inputs(torch.device("cpu"), torch.float64, True)]


def test_sample_expressions() -> None:
    ((x,), (y, n)) = samples_of("torch.ones(2)", "(torch.arange(3), 4)")
    assert isinstance(x, torch.Tensor)
    assert isinstance(y, torch.Tensor)
    assert (x.dtype, x.requires_grad, y.dtype, y.requires_grad, n) == (
        torch.float64,
        True,
        torch.int64,
        False,
        4,
    )


def test_only_what_is_chosen_requires_grad() -> None:
    ((x, w),) = samples_of("(torch.ones(2), torch.ones(2, requires_grad=True))")
    assert isinstance(x, torch.Tensor)
    assert isinstance(w, torch.Tensor)
    assert (x.requires_grad, w.requires_grad) == (False, True)


@pytest.mark.parametrize(
    ("target", "samples", "message"),
    [
        ("checked_functions", [], "write module:name"),
        ("no_such_module:F", [], "ModuleNotFoundError"),
        ("checked_functions:Square", [], "has no attribute 'Square'"),
        ("checked_functions:constant", [], "is a int"),
        ("checked_functions:Bare", [], "has no sample_inputs"),
    ],
)
def test_what_cannot_be_checked(target: str, samples: list[str], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        load_entry(target, samples)


def test_a_sample_that_is_no_expression() -> None:
    code, out = run_main("check", "checked_functions:scaled", "--sample", "torch.ones(")
    assert code == 2
    assert "--sample 'torch.ones('" in out
    assert "SyntaxError" in out


def test_exit_codes() -> None:
    assert run_main("check", "checked_functions:Cube")[0] == 0
    code, out = run_main("check", "checked_functions:WrongSecond")
    assert code == 1
    assert "vjpvjp[sample1]" in out
    assert run_main("check", "checked_functions:Nothing")[0] == 2


def test_the_command_itself() -> None:
    """From the folder of the module, as a user runs it; one sample, given as an expression."""
    command = ["-m", "opinfo_db", "check", "checked_functions:Bare"]
    arguments = ["--sample", "(torch.linspace(1, 2, 3), 3)"]
    done = subprocess.run(
        [sys.executable, *command, *arguments],
        cwd=Path(__file__).parent,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert " derived" in done.stdout
    assert " assertions" in done.stdout.splitlines()[-1]


def test_the_report() -> None:
    difference = Difference(
        "vmapvjp[1]", torch.tensor([1.0, 2.0]), torch.tensor([1.0, math.nan]), math.inf, 1e-9
    )
    report = Report(
        "Cube",
        (Row("backward", "pass", 5), Row("vmap", "derived", 4)),
        (
            Row("vjp", "pass", 5),
            Row("vmapvjp", "fail", 3, Failure("sample1-in_dims(0,None)", "", difference)),
            Row("jvp", "missing"),
            Row("memory", "fail", 2, Failure("sample0", "a tensor\nis kept\nalive\nby it", None)),
        ),
    )
    out = io.StringIO()
    print_report(report, Console(file=out, width=100))
    assert_expected_inline(
        "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n",
        """\
+-------+----------+---------+------------+-------------------------+------------+
| kind  | name     | result  | assertions | first failing sample    | difference |
+-------+----------+---------+------------+-------------------------+------------+
| rule  | backward | pass    |          5 |                         |            |
| rule  | vmap     | derived |          4 |                         |            |
+-------+----------+---------+------------+-------------------------+------------+
| check | vjp      | pass    |          5 |                         |            |
| check | vmapvjp  | fail    |          3 | sample1-in_dims(0,None) | inf        |
| check | jvp      | missing |          0 |                         |            |
| check | memory   | fail    |          2 | sample0                 |            |
+-------+----------+---------+------------+-------------------------+------------+
vmapvjp[sample1-in_dims(0,None)]: vmapvjp[1]
  expected [1. 2.]
  got      [ 1. nan]
  the largest difference is inf, allowed 1e-09
memory[sample0]: a tensor
is kept
alive
Cube: 1 pass, 2 fail, 1 missing; 10 assertions
""",
    )


def test_list_checks() -> None:
    code, out = run_main("list", "checks")
    assert code == 0
    assert "vmapjvpvjp" in out
    assert "forward over reverse" in " ".join(out.split())


def test_list_entries() -> None:
    code, out = run_main("list", "entries")
    assert code == 0
    assert int(out.splitlines()[-1].split()[0]) >= 60


def test_list_torch() -> None:
    code, out = run_main("list", "torch")
    assert code == 0
    assert "linalg.cholesky" in out


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_main()
    assert "usage: python -m opinfo_db" in capsys.readouterr().err


def test_help_says_what_a_sample_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run_main("check", "--help")
    text = textwrap.dedent(capsys.readouterr().out)
    assert "a tuple being the list of arguments" in " ".join(text.split())
