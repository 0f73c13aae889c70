"""What a user sees of a step."""

from branchwise.train.progress import Display

STEP = {"reward": 0.5, "tokens_per_second": 100.0, "seconds": 2.0}


def shown(capsys, **metrics):
    with Display(10) as display:
        display.step(1, STEP | metrics)
    return capsys.readouterr().out


def test_a_mismatch_is_shown_where_it_is_large(capsys):
    assert "mismatch" not in shown(capsys, mismatch=0.01)
    assert "mismatch 0.31" in shown(capsys, mismatch=0.31)


def test_stale_trees_are_shown(capsys):
    assert "stale" not in shown(capsys, staleness=0.0)
    assert "stale 1" in shown(capsys, staleness=1.0)
