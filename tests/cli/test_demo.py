from __future__ import annotations

from pathlib import Path

from tests.cli.running import invoke, one_line_error, run


def test_demo_of_the_log_has_every_act_and_leaves_valid_files(tmp_path: Path) -> None:
    done = run("demo", "--log", "--records", 20_000, "--data-dir", tmp_path / "demo")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("wrote", "read back", "offset 10,000", "in RAM", "crashed", "0 records lost", "verified", "done"):
        assert word in done.stdout
    assert invoke("verify", tmp_path / "demo").exit_code == 0
    assert "already exists" in one_line_error(invoke("demo", "--log", "--data-dir", tmp_path / "demo"))


def test_demo_of_one_record_works() -> None:
    assert run("demo", "--log", "--records", 1).returncode == 0


def test_zero_records_are_refused() -> None:
    one_line_error(invoke("demo", "--log", "--records", 0))


def test_options_of_the_other_demo_are_refused() -> None:
    assert "add --log" in one_line_error(invoke("demo", "--records", 5))
    assert "without --log" in one_line_error(invoke("demo", "--log", "--flights", 5))
