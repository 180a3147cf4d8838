"""Every bad input ends in a typed error that names the argument, the value and what is legal."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import classwise as cw
from classwise.data.mixing import UniMix

GOOD = [50, 20, 5]
Z = torch.zeros(4, 3)
Y = torch.tensor([0, 1, 2, 0])
T = cw.terms.ce(GOOD)
NAN = float("nan")


def table() -> cw.BinTable:
    bins = cw.ClassBins(3)
    bins.update(Z, Y)
    return bins.compute()


def criterion(method: Any = "ce", counts: Any = GOOD, **settings: Any) -> cw.Criterion:
    return cw.Criterion(method, counts, **{"epochs": 10, **settings})


def running(method: str = "ce", **settings: Any) -> cw.Criterion:
    made = criterion(method, **settings)
    made.start_epoch(0)
    return made


def floors() -> cw.ClassFloors:
    made = cw.ClassFloors(3)
    made.update(Z, Y)
    return made


# what happens -> (the call, a part of the message); a table, one case a line
# fmt: off
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    # class_counts
    "negative count": (lambda: cw.terms.ce([5, -1]), r"class_counts\[1\]=-1 is negative"),
    "zero count": (lambda: cw.terms.la([5, 0, 3, 0]), r"2 class\(es\) without samples \(index 1, 3"),
    "zero count in criterion": (lambda: criterion(counts=[5, 0]), "allow_empty=True"),
    "all zero": (lambda: cw.terms.ce([0, 0], allow_empty=True), "no sample in any class"),
    "float counts": (lambda: cw.terms.ce([5.0, 3.0]), "must be whole numbers"),  # type: ignore[list-item]
    "frequencies": (lambda: cw.terms.ce(torch.tensor([0.5, 0.5])), "not its frequency"),
    "NaN counts": (lambda: cw.terms.ce(np.array([NAN, 1.0])), "must be whole numbers"),
    "bool counts": (lambda: cw.terms.ce([True, True]), "must be whole numbers"),
    "text counts": (lambda: cw.terms.ce("53"), "one-dimensional sequence"),  # type: ignore[arg-type]
    "list of text": (lambda: cw.terms.ce(["5", "3"]), "whole numbers"),  # type: ignore[list-item]
    "dict counts": (lambda: cw.terms.ce({"a": 5, "b": 3}), "one-dimensional"),  # type: ignore[arg-type]
    "scalar counts": (lambda: cw.terms.ce(5), "one-dimensional"),  # type: ignore[arg-type]
    "2-D counts": (lambda: cw.terms.ce(torch.ones(2, 2).long()), r"shape \(2, 2\)"),
    "one class": (lambda: cw.terms.ce([5]), "at least 2 classes, got 1"),
    "no counts": (lambda: cw.terms.ce([]), "at least 2 classes, got 0"),
    # hyper-parameters
    "negative tau": (lambda: cw.terms.la(GOOD, tau=-0.1), "tau=-0.1 is out of range"),
    "negative gamma": (lambda: cw.terms.cdt(GOOD, gamma=-1), "gamma=-1 is out of range"),
    "NaN nu": (lambda: cw.terms.power_weights(GOOD, NAN), "nu=nan is out of range"),
    "infinite tau": (lambda: cw.terms.la(GOOD, tau=float("inf")), "tau=inf is out of range"),
    "p of 1": (lambda: cw.terms.effective_number(GOOD, 1.0), r"p=1.0 is out of range, legal is \[0, 1\)"),
    "text tau": (lambda: cw.terms.la(GOOD, tau="1"), "tau='1' must be a number"),  # type: ignore[arg-type]
    "bool tau": (lambda: cw.terms.la(GOOD, tau=True), "tau=True must be a number"),
    "zero scale": (lambda: cw.terms.ldam(GOOD, scale=0), "scale=0 is out of range"),
    "negative margin": (lambda: cw.terms.ldam(GOOD, max_margin=-1), "max_margin=-1 is out of range"),
    "slopes too few": (lambda: cw.terms.cla(GOOD, tau=1, slopes=[1, 1]), "slopes has 2 entries"),
    "slope of zero": (lambda: cw.terms.mla(GOOD, gamma=1, slopes=[1, 0, 1]), r"slopes\[1\]=0.0 must be > 0"),
    "NaN slope": (lambda: cw.terms.mla(GOOD, gamma=1, slopes=[1, NAN, 1]), r"slopes\[1\]=nan is not finite"),
    # Terms
    "negative alpha": (lambda: T.replace(alpha=[1, -1, 1]), r"alpha\[1\]=-1.0 must be >= 0"),
    "zero beta": (lambda: T.replace(beta=[1, 1, 0]), r"beta\[2\]=0.0 must be > 0"),
    "infinite delta": (lambda: T.replace(delta=[0, float("inf"), 0]), r"delta\[1\]=inf is not finite"),
    "short field": (lambda: T.replace(alpha=[1, 1]), "alpha has 2 entries where there are 3"),
    "unknown field": (lambda: T.replace(bta=[1, 1, 1]), "no field 'bta', did you mean 'beta'"),
    "fields differ": (lambda: cw.Terms([1, 1], [1, 1, 1], [0, 0], [0, 0]), "differ in length"),
    "2-D field": (lambda: T.replace(alpha=torch.ones(3, 1)), r"must have shape \(C,\)"),
    "text field": (lambda: T.replace(alpha="abc"), "alpha must be numbers"),
    "complex field": (lambda: T.replace(alpha=torch.ones(3, dtype=torch.complex64)), "real numbers"),
    "integer dtype": (lambda: T.to(dtype=torch.int64), "terms are floating point"),
    # logits and targets
    "integer logits": (lambda: cw.vs_loss(Z.long(), Y, T), "logits must be floating point, got dtype torch.int64"),
    "flat logits": (lambda: cw.vs_loss(Z[0], Y, T), r"\(N, C\) or \(N, C, d1, ...\), got \(3,\)"),
    "ndarray logits": (lambda: cw.vs_loss(Z.numpy(), Y, T), "logits must be a torch.Tensor"),  # type: ignore[arg-type]
    "wrong C": (lambda: cw.vs_loss(torch.zeros(4, 5), Y, T), "logits have 5 classes .* where 3 are expected"),
    "list target": (lambda: cw.vs_loss(Z, [0, 1, 2, 0], T), "target must be a torch.Tensor"),  # type: ignore[arg-type]
    "target too large": (lambda: cw.vs_loss(Z, Y + 1, T), r"target holds 3, legal are 0 to 2 .*1 of 4"),
    "target negative": (lambda: cw.vs_loss(Z, Y - 1, T), "target holds -1"),
    "target length": (lambda: cw.vs_loss(Z, Y[:3], T), r"target must have shape \(4,\)"),
    "integer one-hot": (lambda: cw.vs_loss(Z, Z.long(), T), "cast a one-hot target to floating point"),
    "float indices": (lambda: cw.vs_loss(Z, Y.float(), T), "class indices must be int64"),
    "bool target": (lambda: cw.vs_loss(Z, Y.bool(), T), "target must be int64 indices"),
    "dense target shape": (lambda: cw.vs_loss(torch.zeros(2, 3, 4), torch.zeros(2, 3).long(), T), r"must have shape \(2, 4\)"),
    "target elsewhere": (lambda: cw.vs_loss(Z, Y.to("meta"), T), "target is on meta but logits are on cpu"),
    "unknown reduction": (lambda: cw.vs_loss(Z, Y, T, reduction="men"), "reduction='men' is unknown, did you mean 'mean'"),
    "unknown normalize": (lambda: cw.VSLoss(T, normalize="weight"), "did you mean 'weights'"),
    "smoothing of 2": (lambda: cw.vs_loss(Z, Y, T, label_smoothing=2), "label_smoothing=2 is out of range"),
    "terms from counts": (lambda: cw.VSLoss(GOOD), "terms must be a classwise Terms, got list"),  # type: ignore[arg-type]
    "focal gamma": (lambda: cw.focal_loss(Z, Y, gamma=-1), "gamma=-1 is out of range"),
    "focal weight": (lambda: cw.focal_loss(Z, Y, weight=torch.tensor([1.0, -1, 1])), r"weight\[1\]=-1.0 must be >= 0"),
    "ib without features": (lambda: cw.influence_balanced_loss(Z, Y, None), "needs the features"),  # type: ignore[arg-type]
    "ib list of features": (lambda: cw.influence_balanced_loss(Z, Y, [1, 2]), "features must be a torch.Tensor, got list"),  # type: ignore[arg-type]
    "ignore_index of no kind": (lambda: cw.vs_loss(Z, Y, T, ignore_index=None), "ignore_index=None must be a whole number"),  # type: ignore[arg-type]
    "ignore_index of 1.5": (lambda: cw.focal_loss(Z, Y, ignore_index=1.5), "ignore_index=1.5 must be a whole number"),  # type: ignore[arg-type]
    "ib features": (lambda: cw.influence_balanced_loss(Z, Y, Z[:2]), r"features must be \(N, D\)"),
    "ib strength": (lambda: cw.InfluenceBalancedLoss(strength=0), "strength=0 is out of range"),
    "dense lade": (lambda: cw.lade_loss(Z[:, :, None], Y[:, None], GOOD), r"LADE needs logits \(N, C\)"),
    "linear shapes": (lambda: cw.linear_vs_loss(torch.zeros(4, 2), torch.zeros(3, 5), None, Y, T), "do not fit"),
    "linear bias": (lambda: cw.linear_vs_loss(torch.zeros(4, 2), torch.zeros(3, 2), torch.zeros(2), Y, T), "bias has 2 entries"),
    "linear features": (lambda: cw.linear_vs_loss(Y, torch.zeros(3, 2), None, Y, T), "features must be a floating-point tensor"),
    "linear chunk": (lambda: cw.linear_vs_loss(torch.zeros(4, 2), torch.zeros(3, 2), None, Y, T, chunk=0), "chunk=0 must be at least 1"),
    "fold a conv": (lambda: cw.fold(torch.nn.Conv1d(1, 1, 1), T), "linear must be an nn.Linear, got Conv1d"),  # type: ignore[arg-type]
    "fold other C": (lambda: cw.fold(torch.nn.Linear(2, 4), T), "linear has 4 outputs"),
    "target prior": (lambda: cw.adjust(Z, GOOD, target_prior=[1, 0, 1]), r"target_prior\[1\]=0.0 must be > 0"),
    "target prior length": (lambda: cw.adjust(Z, GOOD, target_prior=[1, 1]), "target_prior has 2 entries"),
    # recipes
    "unknown method": (lambda: criterion("cvs+adwr"), "did you mean 'adrw'"),
    "unknown base": (lambda: criterion("ldm"), "method='ldm' is unknown, did you mean 'ldam'"),
    "method of no kind": (lambda: criterion(7), "method must be a name or a Recipe, got int"),
    "order": (lambda: criterion("vs+drw+tla"), r"is written 'vs\+tla\+drw'"),
    "twice": (lambda: criterion("vs+tla+tla"), "each at most once"),
    "both weights": (lambda: criterion("ce+drw+adrw"), "take one"),
    "unknown hyper": (lambda: criterion("vs", tua=1), r"'vs' takes tau, gamma, not 'tua', did you mean 'tau'"),
    "hyper of another": (lambda: criterion("ce", gamma=1), "'ce' takes no hyper-parameters, not 'gamma'"),
    "foreign hyper": (lambda: criterion("cvs+adrw", tro=1), "here it is called 'nu'"),
    "foreign t_reweight": (lambda: criterion("ce", t_reweight=5), "here it is called 'defer_at'"),
    "foreign name of nothing": (lambda: criterion("ce", tro=1), r"takes no hyper-parameters, not 'tro'\.$"),
    "misspelt setting": (lambda: criterion("ce", defer_et=5), "not 'defer_et', did you mean 'defer_at'"),
    "foreign counts": (lambda: criterion("ce", cls_num_list=GOOD), "here it is called 'class_counts'"),
    "hyper range": (lambda: criterion("ce+drw", p=2), "p=2 is out of range"),
    "hyper beside recipe": (lambda: criterion(cw.Recipe.parse("ce"), tau=1), "set tau in its parts"),
    "empty recipe": (lambda: cw.Recipe([]), "at least one Phase"),
    "recipe of names": (lambda: cw.Recipe(["ce"]), "nothing but phases"),  # type: ignore[list-item]
    "late recipe": (lambda: cw.Recipe([cw.Phase("ce", start=3)]), "must start at 0, not at 3"),
    "phases out of order": (lambda: criterion(cw.Recipe([cw.Phase(), cw.Phase(start=5), cw.Phase(start=0.2)])), "not in order"),
    "phase terms": (lambda: cw.Phase(3), "terms must be a name, a Part, Terms or a function"),  # type: ignore[arg-type]
    "phase name": (lambda: cw.Phase("l_a"), "terms='l_a' is unknown"),
    "phase without tau": (lambda: cw.Phase("la"), "terms 'la' needs tau"),
    "phase hyper": (lambda: cw.Phase(cw.Part("la", tua=1)), "terms 'la' takes tau, not 'tua'"),
    "phase weights": (lambda: cw.Phase(weights=cw.Part("powr", nu=1)), "did you mean 'power'"),
    "phase loss": (lambda: cw.Phase(loss="focl"), "did you mean 'focal'"),
    "phase leans on": (lambda: cw.Phase(cw.terms.la, leans_on="kappa"), "leans_on='kappa' is unknown"),
    "named terms lean": (lambda: cw.Phase("ce", leans_on="star"), "is for a function of class_counts and slopes"),
    "margins in focal": (lambda: criterion(cw.Recipe([cw.Phase(cw.terms.ldam(GOOD), loss=cw.Part("focal", gamma=1))])), "knows no margins"),
    "phase start": (lambda: cw.Phase(start=-1), "start=-1 must be at least 0"),
    "phase start text": (lambda: cw.Phase(start="later"), "start='later' must be a whole number"),
    # the criterion
    "no epochs": (lambda: criterion(epochs=0), "epochs=0 must be at least 1"),
    "float epochs": (lambda: criterion(epochs=10.0), "epochs=10.0 must be a whole number"),
    "defer_at beyond": (lambda: criterion(defer_at=160), "defer_at=160 lies beyond the training of epochs=10"),
    "defer_at of 1.0": (lambda: criterion(defer_at=1.0), "defer_at=1.0 is out of range"),
    "negative defer_at": (lambda: criterion(defer_at=-1), "defer_at=-1 must be at least 0"),
    "bool defer_at": (lambda: criterion(defer_at=True), "defer_at=True must be a whole number"),
    "warmup beyond": (lambda: criterion(warmup=11), "warmup=11 lies beyond"),
    "unknown slopes": (lambda: criterion(slopes="stabel"), "slopes='stabel' is unknown, did you mean 'stable'"),
    "criterion reduction": (lambda: criterion(reduction="avg"), "reduction='avg' is unknown"),
    "lade sum": (lambda: criterion("lade", reduction="sum"), "only 'mean'"),
    "not started": (lambda: criterion()(Z.clone().requires_grad_(), Y), r"call start_epoch\(0\)"),
    "late start": (lambda: criterion().start_epoch(3), "no epoch has started, so 0 is next"),
    "skipped epoch": (lambda: running().start_epoch(2), "epoch 0 is running, so 1 is next"),
    "epoch beyond": (lambda: running().start_epoch(10, jump=True), "epoch=10 must be at least 0 and at most 9"),
    "float epoch": (lambda: running().start_epoch(1.0), "epoch=1.0 must be a whole number"),  # type: ignore[arg-type]
    "criterion C": (lambda: running()(torch.zeros(4, 5), Y), "logits have 5 classes"),
    "criterion target": (lambda: running()(Z, Y + 5), "target holds 5"),
    "empty normalize": (lambda: criterion(normalize=""), "normalize='' is unknown"),
    "mass": (lambda: running().mass(Y + 1), "target holds 3"),
    "mass of a list": (lambda: running().mass([0, 1]), "target must be a torch.Tensor"),  # type: ignore[arg-type]
    "features before their phase": (lambda: running("ib")(Z.clone().requires_grad_(), Y), "'ib' needs the features"),
    "foreign state": (lambda: criterion().load_state_dict({"weight": Z}), "no state of a classwise Criterion"),
    "criterion ignore_index": (lambda: criterion(ignore_index="no"), "ignore_index='no' must be a whole number"),
    "recipe of a name": (lambda: cw.Recipe("cvs"), "nothing but phases"),  # type: ignore[arg-type]
    "recipe of nothing": (lambda: cw.Recipe(None), "phases must be a list of Phase, got NoneType"),  # type: ignore[arg-type]
    "criterion features": (lambda: running("ib", start=0.0)(Z, Y), "needs the features"),
    "no statistics": (lambda: running(slopes=None).table(), "streams no statistics"),
    # slopes
    "config grouping": (lambda: cw.SlopeConfig(group_by="label"), "group_by='label' is unknown"),
    "config logits": (lambda: cw.SlopeConfig(logits="adjust"), "did you mean 'adjusted'"),
    "config momentum": (lambda: cw.SlopeConfig(momentum=1.0), "momentum=1.0 is out of range"),
    "config bound": (lambda: cw.SlopeConfig(bound=(2.0, 1.0)), r"bound\[1\]=1.0 is out of range"),
    "config bound kind": (lambda: cw.SlopeConfig(bound=1.5), r"must be \(low, high\)"),  # type: ignore[arg-type]
    "config part": (lambda: cw.SlopeConfig().replace(momentm=0.5), "did you mean 'momentum'"),
    "infinity below": (lambda: UniMix(power=-float("inf")), r"=-inf is out of range"),
    "config yes or no": (lambda: cw.SlopeConfig(center="no"), "center='no' must be True or False"),  # type: ignore[arg-type]
    "config shrink": (lambda: cw.SlopeConfig(shrink=-1), "shrink=-1 is out of range"),
    "slopes of a metric": (lambda: cw.slopes(cw.ClassBins(3)), "call compute"),  # type: ignore[arg-type]
    "errors of a metric": (lambda: cw.calibration_error(cw.ClassBins(3)), "table must be a BinTable, got ClassBins"),  # type: ignore[arg-type]
    "curves of a metric": (lambda: cw.reliability(cw.ClassBins(3)), "call compute"),  # type: ignore[arg-type]
    "slopes on": (lambda: cw.slopes(table(), on="logits"), "did you mean 'logit'"),
    "slopes method": (lambda: cw.slopes(table(), method="ols"), "method='ols' is unknown"),
    "slopes pool": (lambda: cw.slopes(table(), pool="many"), "pool='many' is unknown"),
    "pool without few": (lambda: cw.slopes(table(), pool="few", shots={"all": torch.ones(3).bool()}), "needs a group 'few'"),
    "slopes min_count": (lambda: cw.slopes(table(), min_count=0), "min_count=0 must be at least 1"),
    # statistics
    "bins classes": (lambda: cw.ClassBins(1), "num_classes=1 must be at least 2"),
    "bins bins": (lambda: cw.ClassBins(3, num_bins=1), "num_bins=1 must be at least 2"),
    "bins grouping": (lambda: cw.ClassBins(3, group_by="predicted"), "did you mean 'prediction'"),
    "bins C": (lambda: cw.ClassBins(5).update(Z, Y), "logits have 3 classes"),
    "bins target": (lambda: cw.ClassBins(3).update(Z, Y + 9), "target holds 9"),
    "floors terms": (lambda: cw.ClassFloors(4, terms=T), "terms have 3 classes, num_classes=4"),
    "floors under counts": (lambda: cw.ClassFloors(3, terms=GOOD), "terms must be a classwise Terms, got list"),  # type: ignore[arg-type]
    "shots overlap": (lambda: cw.shots(GOOD, many=5, few=10), "few=10 and many=5 overlap"),
    "shots kind": (lambda: cw.calibration_error(table(), shots=["few"]), "must map group names"),  # type: ignore[arg-type]
    "shots mask": (lambda: cw.reliability(table(), {"few": torch.ones(3)}), "must be a bool mask"),
    "shots twice": (lambda: cw.reliability(table(), {"a": torch.ones(3).bool(), "b": torch.ones(3).bool()}), "class 0 is in 2 groups"),
    "measure nothing": (lambda: cw.measure(torch.nn.Linear(2, 3), [], GOOD), "no sample that counts"),
    "measure no model": (lambda: cw.measure(None, [(Z, Y)]), "model must be an nn.Module, got NoneType"),  # type: ignore[arg-type]
    "measure no loader": (lambda: cw.measure(torch.nn.Linear(2, 3), 5), "loader must yield batches, got int"),  # type: ignore[arg-type]
    "measure a dict": (lambda: cw.measure(torch.nn.Linear(2, 3), [{"x": Z}], GOOD), "must yield"),
    "measure adjusted": (lambda: cw.measure(torch.nn.Linear(2, 3), [], GOOD, adjusted=True), "needs the terms"),
    # theory
    "floors of no kind": (lambda: cw.theory.lipschitz(T, 3), "floors must be ClassFloors"),
    "empty floors": (lambda: cw.theory.lipschitz(T, cw.ClassFloors(3).state()), "have seen no sample"),
    "floors C": (lambda: cw.theory.lipschitz(cw.terms.ce([3, 1]), floors()), "floors are of 3 classes"),
    "margins": (lambda: cw.theory.lipschitz(cw.terms.ldam(GOOD), floors()), "outside the lemma"),
    "bound counts": (lambda: cw.theory.bound(T, floors(), [3, 1]), "class_counts has 2 classes"),
    "lipschitz of counts": (lambda: cw.theory.lipschitz(GOOD, floors()), "terms must be a classwise Terms, got list"),  # type: ignore[arg-type]
    "consistent of counts": (lambda: cw.theory.consistent(GOOD, GOOD), "terms must be a classwise Terms, got list"),  # type: ignore[arg-type]
    "zero count in theory": (lambda: cw.theory.consistent(T, [5, 0, 1]), r"Remove them from the label set\.$"),
    "zero count in bound": (lambda: cw.theory.bound(T, floors(), [5, 0, 1]), r"Remove them from the label set\.$"),
    "consistent counts": (lambda: cw.theory.consistent(T, [3, 1]), "class_counts has 2 classes"),
    "consistent slopes": (lambda: cw.theory.consistent(T, GOOD, [1, 1, -1]), "slopes must be > 0"),
    "unknown assumption": (lambda: cw.theory.consistent(T, GOOD).under("local"), "assumption='local' is unknown"),
    # data
    "ratio below 1": (lambda: cw.longtail_counts(500, 10, 0.01), "imbalance_ratio=0.01 is out of range"),
    "ratio too large": (lambda: cw.longtail_counts(5, 10, 100), r"leaves \d+ class\(es\) without samples"),
    "profile": (lambda: cw.longtail_counts(5, 10, 2, profile="stp"), "did you mean 'step'"),
    "select too many": (lambda: cw.select([0, 0, 1], [3, 1], torch.Generator()), "class 0 has 2 samples, 3 are wanted"),
    "select labels": (lambda: cw.select([0, 0, 2], [1, 1], torch.Generator()), "labels go from 0 to 2, counts name 2"),
    "select floats": (lambda: cw.select([0.0, 1.0], [1, 1], torch.Generator()), "labels must be whole numbers"),
}
# fmt: on


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_with_a_reason(case: str):
    call, message = CASES[case]
    with pytest.raises(cw.ClasswiseError, match=message) as error:
        call()
    assert isinstance(error.value, (ValueError, RuntimeError))
    assert str(error.value).endswith((".", "?"))


def test_there_are_at_least_sixty_bad_inputs():
    assert len(CASES) >= 60


def test_a_positional_misuse_of_keyword_arguments_is_a_type_error():
    with pytest.raises(TypeError):
        cw.terms.la(GOOD, 1.0)  # type: ignore[misc]
