"""Learning rates against the tables that the published code and the paper give."""

import math

import pytest
import torch

import classwise as cw
from classwise.phases import epoch_of
from classwise.train.schedules import SCHEDULES, lr_at

# 1-based epochs of 200, base rate 0.1.
EPOCHS = (1, 5, 6, 160, 161, 180, 181)
GOLDEN = {
    "released": (0.02, 0.1, 0.1, 0.1, 0.001, 0.001, 1e-5),
    "released-moved": (0.02, 0.1, 0.1, 0.1, 0.001, 0.001, 1e-5),
    "printed": (0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001),
    "released-400": (0.02, 0.1, 0.1, 0.1, 0.001, 0.001, 1e-5),
    "cosine": (0.1, 0.09990144, 0.09984602, 0.01010575, 0.00963960, 0.00279303, 0.00254473),
    "cosine-zero": (0.1, 0.09990134, 0.09984587, 0.01001577, 0.00954915, 0.00269573, 0.00244717),
    "constant": (0.1,) * 7,
}


def rates(name: str, epochs: int, base_lr: float = 0.1) -> list[float]:
    return [lr_at(name, epoch, epochs, base_lr) for epoch in range(epochs)]


def test_every_schedule_has_a_golden_row():
    assert set(GOLDEN) == set(SCHEDULES)


@pytest.mark.parametrize("name", SCHEDULES)
def test_golden_table_of_200_epochs(name: str):
    table = rates(name, 200)
    assert [table[epoch - 1] for epoch in EPOCHS] == pytest.approx(GOLDEN[name], rel=1e-5)


def test_released_400_overshoots_as_the_published_code_does():
    table = rates("released-400", 400)
    climb = [0.02, 0.04, 0.06, 0.08, 0.10, 0.12, 0.14, 0.16, 0.18, 0.20]
    assert table[:10] == pytest.approx(climb)
    assert table[10:320] == pytest.approx([0.1] * 310)
    assert table[320:360] == pytest.approx([1e-3] * 40)
    assert table[360:] == pytest.approx([1e-5] * 40)
    assert rates("released", 400)[:7] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1])
    assert rates("released-400", 399) == rates("released", 399)


@pytest.mark.parametrize("epochs", [20, 60, 200, 400])
def test_released_moved_is_released_until_t0_moves(epochs: int):
    assert rates("released-moved", epochs) == rates("released", epochs)


def test_released_moved_drops_at_t0_and_halfway_to_the_end():
    table = [lr_at("released-moved", epoch, 200, 0.1, 60) for epoch in range(200)]
    assert table[4:60] == pytest.approx([0.1] * 56)
    assert table[60:130] == pytest.approx([1e-3] * 70)
    assert table[130:] == pytest.approx([1e-5] * 70)
    with pytest.raises(
        cw.ArgumentError, match="defer_epoch=201 must be at least 0 and at most 200"
    ):
        lr_at("released-moved", 0, 200, 0.1, 201)


@pytest.mark.parametrize(("name", "floor"), [("cosine", 1e-4), ("cosine-zero", 0.0)])
@pytest.mark.parametrize("epochs", [1, 90, 400])
def test_cosines_are_those_of_torch(name: str, floor: float, epochs: int):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs, eta_min=floor)
    expected = []
    for _ in range(epochs):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates(name, epochs) == pytest.approx(expected, rel=1e-6)


def test_protocol_c_ends_at_1e_4():
    assert rates("cosine", 400)[-1] == pytest.approx(1e-4, rel=0.02)


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        (1, [1.0]),
        (2, [1.0, 0.01]),
        (3, [1.0, 1.0, 0.01]),
        (5, [1.0, 1.0, 1.0, 1.0, 0.01]),
        (10, [0.5, 1, 1, 1, 1, 1, 1, 1, 0.01, 0.0001]),
        (20, [1 / 3, 2 / 3, *[1] * 14, *[0.01] * 2, *[0.0001] * 2]),
        (40, [0.2, 0.4, 0.6, 0.8, *[1] * 28, *[0.01] * 4, *[0.0001] * 4]),
    ],
)
def test_short_trainings(epochs: int, expected: list[float]):
    assert rates("released", epochs, 1.0) == pytest.approx(expected)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 5, 7, 9, 10, 11, 39, 60, 90, 199, 201, 400, 1000])
def test_properties_at_any_length(name: str, epochs: int):
    table = rates(name, epochs)
    highest = 0.1 * max(1, epochs // 200) if name == "released-400" else 0.1
    assert all(0 < rate <= highest + 1e-12 for rate in table)
    assert max(table) >= 0.1 - 1e-12  # the base rate is reached
    assert rates(name, epochs, 0.3) == pytest.approx([3 * rate for rate in table])
    top = table.index(max(table))
    assert table[: top + 1] == sorted(table[: top + 1])
    assert table[top:] == sorted(table[top:], reverse=True)


@pytest.mark.parametrize(("name", "factor"), [("printed", 0.1), ("released", 0.01)])
def test_the_first_drop_comes_with_the_deferred_phase(name: str, factor: float):
    for epochs in range(2, 300):
        table = rates(name, epochs, 1.0)
        first = next(e for e in range(1, epochs) if table[e] < table[e - 1])
        assert first == epoch_of("defer_at", 0.8, epochs)
        assert table[first] == pytest.approx(factor)  # never both drops at once


def test_rows_say_where_they_come_from():
    for name, spec in SCHEDULES.items():
        assert spec.name == name
        assert spec.title
        assert spec.source or name == "constant"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("relesed", 0, 10, 0.1), "schedule='relesed' is unknown, did you mean 'released'"),
        (("released", 10, 10, 0.1), "epoch=10 must be at least 0 and at most 9"),
        (("released", -1, 10, 0.1), "epoch=-1 must be at least 0"),
        (("released", 0, 0, 0.1), "epochs=0 must be at least 1"),
        (("released", 0.5, 10, 0.1), "epoch=0.5 must be a whole number"),
        (("released", 0, 10, -0.1), "base_lr=-0.1 is out of range"),
        (("released", 0, 10, math.nan), "base_lr=nan is out of range"),
    ],
)
def test_what_is_wrong_is_named(arguments: tuple, message: str):
    with pytest.raises(cw.ArgumentError, match=message):
        lr_at(*arguments)
