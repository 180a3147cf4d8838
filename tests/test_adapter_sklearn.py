"""The scikit-learn estimator: its conventions, and a plain loop that trains the same."""

import pickle
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("skorch", reason="the skorch package is not installed")
pytest.importorskip("sklearn", minversion="1.6", reason="scikit-learn 1.6 is not installed")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback

import classwise as cw
from classwise.adapters.sklearn import ImbalancedClassifier, StartEpoch, mlp

COUNTS = [150, 40, 8]


def skewed(seed: int = 0, counts: Any = COUNTS) -> Any:
    """Return overlapping blobs of two features and 150, 40 and 8 samples."""
    random = np.random.default_rng(seed)
    target = np.repeat(np.arange(len(counts)), counts)
    shuffled = random.permutation(target)
    inputs = random.normal(size=(len(target), 2)) + 1.5 * shuffled[:, None]
    return inputs, shuffled


def quick(method: Any = "cvs+adrw", **settings: Any) -> ImbalancedClassifier:
    settings = {"max_epochs": 10, "lr": 0.03, "batch_size": 32, "hidden": (16,), **settings}
    return ImbalancedClassifier(method, random_state=0, **settings)


@parametrize_with_checks(
    # Nothing of the list is expected to fail.
    [ImbalancedClassifier(max_epochs=8, lr=0.03, batch_size=32, hidden=(16,))]
)
@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API.*")
def test_the_conventions_of_scikit_learn(estimator: Any, check: Any):
    check(estimator)


def test_it_trains_as_a_plain_loop_does():
    X, y = skewed()
    model: Any = quick(criterion_params={"defer_at": 0.5, "warmup": 0}).fit(X, y)
    torch.manual_seed(np.random.RandomState(0).randint(2**31 - 1))
    net = mlp(2, 3, (16,))
    criterion = cw.Criterion("cvs+adrw", COUNTS, epochs=10, defer_at=0.5, warmup=0)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.03, weight_decay=1e-2)
    data = torch.utils.data.TensorDataset(torch.tensor(X).float(), torch.tensor(y))
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    for epoch in range(10):
        criterion.start_epoch(epoch)
        for inputs, target in loader:
            optimizer.zero_grad()
            criterion(net(inputs), target).backward()
            optimizer.step()
    trained = model.net_.module_.state_dict()
    assert all(torch.equal(trained[name], value) for name, value in net.state_dict().items())
    expected = net(torch.tensor(X).float()).softmax(1).detach().numpy()
    assert np.allclose(model.predict_proba(X), expected, rtol=1e-5)  # in batches of another size
    assert torch.equal(model.net_.criterion_.kappa_plus, criterion.kappa_plus)
    assert model.net_.criterion_.epoch == 9


def test_what_it_learns_is_balanced():
    X, y = skewed()
    test, truth = skewed(1, [200, 200, 200])
    recalls = []
    for method in ("ce", "la"):
        found = quick(method, max_epochs=40).fit(X, y).predict(test)
        recalls.append([float((found == c)[truth == c].mean()) for c in range(3)])
    ce, la = recalls
    assert la[2] > ce[2] + 0.1
    assert np.mean(la) > np.mean(ce)


def test_labels_of_any_kind_are_kept():
    X, y = skewed()
    names = np.array(["often", "some", "few"])[y]
    model: Any = quick().fit(X, names)
    assert model.classes_.tolist() == ["few", "often", "some"]
    assert model.class_counts_.tolist() == [8, 150, 40]
    assert set(model.predict(X)) <= set(names)
    assert model.score(X, names) == (model.predict(X) == names).mean()
    assert np.allclose(model.predict_proba(X).sum(1), 1, atol=1e-6)
    assert model.n_features_in_ == 2


def test_the_seed_decides_and_torch_is_left_alone():
    X, y = skewed()
    before = torch.random.get_rng_state()
    first, second = (quick().fit(X, y).predict_proba(X) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(first, second)
    other = quick().set_params(random_state=1).fit(X, y).predict_proba(X)
    assert not np.array_equal(first, other)
    np.random.seed(0)
    first, second = (
        quick().set_params(random_state=None).fit(X, y).predict_proba(X) for _ in range(2)
    )
    assert not np.array_equal(first, second)


def test_parameters_can_be_searched_in_a_pipeline():
    X, y = skewed()
    pipeline = make_pipeline(StandardScaler(), quick("la"))
    search: Any = GridSearchCV(
        pipeline,
        {
            "imbalancedclassifier__tau": [0.0, 1.0],
            "imbalancedclassifier__method": ["la", "cla"],
        },
        scoring="balanced_accuracy",
        cv=2,
        error_score="raise",  # type: ignore[arg-type]
    )
    search.fit(X, y)
    assert len(search.cv_results_["params"]) == 4
    best = search.best_estimator_[-1]
    assert str(best.net_.criterion_.recipe).endswith(f"tau={best.tau:g})")
    assert search.predict(X).shape == y.shape


def test_clones_and_copies():
    X, y = skewed()
    model = quick(module=nn.Linear(2, 3), nu=0.3).fit(X, y)
    twin: Any = clone(model)
    assert not hasattr(twin, "net_")
    assert {k: v for k, v in twin.get_params().items() if k != "module"} == {
        k: v for k, v in model.get_params().items() if k != "module"
    }
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


def test_any_module_can_be_trained():
    X, y = skewed()
    mine = nn.Linear(2, 3)
    start = mine.weight.detach().clone()
    model: Any = quick(module=mine).fit(X, y)
    assert torch.equal(mine.weight, start)  # a copy was trained
    assert not torch.equal(model.net_.module_.weight, start)
    made = quick(module=nn.Linear).fit(X, y)
    assert made.predict_proba(X).shape == (len(X), 3)
    images = np.repeat(X[:, :, None, None], 4, axis=2).repeat(4, axis=3)
    flat = quick(module=lambda features, classes: nn.Sequential(nn.Flatten(), nn.Linear(32, 3)))
    assert flat.fit(images, y).predict(images).shape == y.shape


def test_settings_reach_the_net():
    class Counted(Callback):
        epochs = 0

        def on_epoch_end(self, net: Any, *args: Any, **kwargs: Any) -> None:
            Counted.epochs += 1

    X, y = skewed()
    model = quick(net_params={"optimizer": torch.optim.Adagrad, "callbacks": [Counted()]})
    model.fit(X, y)
    assert isinstance(model.net_.optimizer_, torch.optim.Adagrad)
    assert Counted.epochs == 10


def test_skorch_itself_with_the_callback():
    X, y = skewed()
    net = NeuralNetClassifier(
        nn.Linear(2, 3),
        criterion=cw.Criterion,  # type: ignore[arg-type]
        criterion__method="cvs",
        criterion__class_counts=COUNTS,
        criterion__epochs=4,
        max_epochs=4,
        callbacks=[StartEpoch()],
        predict_nonlinearity=partial(torch.softmax, dim=1),
        verbose=0,
    )
    net.fit(X.astype(np.float32), y)
    assert net.criterion_.epoch == 3
    assert np.allclose(net.predict_proba(X.astype(np.float32)).sum(1), 1, atol=1e-6)


class TestRefusalsOfTheCallback:
    def net(self, criterion: Any, **settings: Any) -> Any:
        settings = {"predict_nonlinearity": partial(torch.softmax, dim=1), **settings}
        callbacks = [StartEpoch()]
        return NeuralNetClassifier(
            nn.Linear(2, 3), criterion=criterion, callbacks=callbacks, verbose=0, **settings
        )

    def fit(self, net: Any) -> Any:
        X, y = skewed()
        return net.fit(X.astype(np.float32), y)

    def test_logits_that_would_be_taken_for_probabilities(self):
        net = self.net(cw.Criterion("cvs", COUNTS, epochs=2), predict_nonlinearity="auto")
        with pytest.raises(cw.ArgumentError, match="'auto' would take logits for probabilities"):
            self.fit(net)

    def test_a_loss_without_epochs(self):
        with pytest.raises(cw.ArgumentError, match=r"must be a classwise.Criterion .* CrossEnt"):
            self.fit(self.net(nn.CrossEntropyLoss))

    def test_more_epochs_than_the_criterion_has(self):
        net = self.net(cw.Criterion("cvs", COUNTS, epochs=2), max_epochs=3)
        with pytest.raises(cw.StateError, match=r"epoch 2 begins, .* give the net the same max_"):
            self.fit(net)

    def test_a_criterion_that_was_trained_with(self):
        net = self.net(cw.Criterion("cvs", COUNTS, epochs=2), max_epochs=2)
        with pytest.raises(cw.StateError, match=r"trained with up to epoch 1; make another"):
            self.fit(self.fit(net))


class TestRefusals:
    def test_one_class(self):
        with pytest.raises(cw.ArgumentError, match=r"one class only, .*7.*; 2 are needed"):
            quick().fit(np.zeros((4, 2)), [7, 7, 7, 7])

    def test_methods_that_need_more_than_logits(self):
        X, y = skewed()
        with pytest.raises(cw.ArgumentError, match="'ldam' needs cosine logits"):
            quick("ldam").fit(X, y)
        with pytest.raises(cw.ArgumentError, match="'ib' needs features"):
            quick("ib").fit(X, y)

    def test_hyper_parameters_of_another_method(self):
        X, y = skewed()
        with pytest.raises(cw.UnknownNameError, match=r"'ce' takes .*not 'tau'"):
            quick("ce", tau=1.0).fit(X, y)

    def test_a_module_of_another_width(self):
        X, y = skewed()
        with pytest.raises(cw.ArgumentError, match="logits have 5 classes"):
            quick(module=nn.Linear(2, 5)).fit(X, y)

    def test_what_is_no_module(self):
        X, y = skewed()
        for module in ("mlp", lambda features, classes: None):
            with pytest.raises(cw.ArgumentError, match=r"module=.* must be a torch module, or a f"):
                quick(module=module).fit(X, y)
        for hidden in (16, "16"):
            with pytest.raises(cw.ArgumentError, match=r"hidden=.* must be a sequence of widths"):
                quick(hidden=hidden).fit(X, y)

    def test_settings_that_are_said_elsewhere(self):
        X, y = skewed()
        for name in ("class_counts", "epochs", "reduction", "ignore_index", "method"):
            with pytest.raises(cw.ArgumentError, match=f"criterion_params may not hold '{name}'"):
                quick(criterion_params={name: 1}).fit(X, y)
        for name in ("module", "criterion", "classes", "max_epochs", "predict_nonlinearity"):
            with pytest.raises(cw.ArgumentError, match=f"net_params may not hold '{name}': "):
                quick(net_params={name: 1}).fit(X, y)
        with pytest.raises(cw.ArgumentError, match="net_params=3 must be a dictionary or None"):
            quick(net_params=3).fit(X, y)

    @pytest.mark.filterwarnings("ignore::classwise.ClasswiseWarning")
    def test_a_training_that_diverges(self):
        X, y = skewed()
        with pytest.raises(cw.StateError, match=r"diverged, its last loss is nan: scale X, or low"):
            quick(lr=1e30).fit(X, y)

    def test_numbers_out_of_range(self):
        X, y = skewed()
        with pytest.raises(cw.ArgumentError, match="lr=-1 is out of range"):
            quick(lr=-1).fit(X, y)
        with pytest.raises(cw.ArgumentError, match="weight_decay='much' must be a number"):
            quick(weight_decay="much").fit(X, y)
        with pytest.raises(cw.ArgumentError, match="hidden=0 must be at least 1"):
            quick(hidden=(4, 0)).fit(X, y)
        with pytest.raises(cw.ArgumentError, match="max_epochs=0 must be at least 1"):
            quick(max_epochs=0).fit(X, y)
        with pytest.raises(cw.ArgumentError, match=r"batch_size=2.5 must be a whole number"):
            quick(batch_size=2.5).fit(X, y)


@pytest.mark.parametrize("package", ["skorch", "sklearn"])
def test_without_its_packages_one_line_says_what_to_install(package: str):
    code = f"import sys; sys.modules[{package!r}] = None\nimport classwise.adapters.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().splitlines()[-1] == (
        f"classwise.adapters.MissingExtraError: classwise.adapters.sklearn needs {package}, which "
        'is not installed: pip install "classwise[adapters]".'
    )
    assert done.stderr.count("Traceback") == 1
