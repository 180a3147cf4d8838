"""scikit-learn: an estimator on skorch, and skorch's callback for nets of one's own.

model = make_pipeline(StandardScaler(), ImbalancedClassifier("cvs+adrw"))
model.fit(X, y)
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import nn

from classwise._checks import number, whole_number
from classwise.adapters import missing
from classwise.criterion import Criterion
from classwise.errors import ArgumentError, StateError
from classwise.recipes import Recipe

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
    from skorch import NeuralNetClassifier
    from skorch.callbacks import Callback
else:
    try:
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.utils import check_random_state
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import check_is_fitted, validate_data
    except ImportError as error:
        raise missing("classwise.adapters.sklearn", "sklearn", error) from None
    try:
        from skorch import NeuralNetClassifier
        from skorch.callbacks import Callback
    except ImportError as error:
        raise missing("classwise.adapters.sklearn", "skorch", error) from None

__all__ = ["ImbalancedClassifier", "StartEpoch", "mlp"]

_HYPER = ("tau", "gamma", "nu")
# What a dictionary of further settings may not hold, and why.
_OF_THE_CRITERION = {
    "method": "it is an argument of its own",
    "class_counts": "they are those of y",
    "epochs": "it is max_epochs",
    "reduction": "skorch wants the mean",
    "ignore_index": "all labels of y count",
}
_OF_THE_NET = {
    "module": "it is an argument of its own",
    "criterion": "it is method and criterion_params",
    "classes": "they are those of y",
    "max_epochs": "it is an argument of its own",
    "predict_nonlinearity": "it is the softmax",
}


def mlp(num_features: int, num_classes: int, hidden: Sequence[int] = (128,)) -> nn.Module:
    """Return a perceptron with rectified hidden layers.

    >>> mlp(4, 3, hidden=(8,))
    Sequential(
      (0): Linear(in_features=4, out_features=8, bias=True)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=3, bias=True)
    )
    """
    if not isinstance(hidden, Sequence) or isinstance(hidden, str):
        raise ArgumentError(f"hidden={hidden!r} must be a sequence of widths, such as (128,).")
    layers: list[nn.Module] = []
    for width in (whole_number("hidden", width, low=1) for width in hidden):
        layers += [nn.Linear(num_features, width), nn.ReLU()]
        num_features = width
    return nn.Sequential(*layers, nn.Linear(num_features, num_classes))


class StartEpoch(Callback):
    """Tell a skorch net's criterion that an epoch starts.

    >>> import classwise as cw
    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(
    ...     torch.nn.Linear(4, 3),
    ...     criterion=cw.Criterion("cvs", [90, 30, 5], epochs=10),
    ...     max_epochs=10,
    ...     callbacks=[StartEpoch()],
    ...     predict_nonlinearity=functools.partial(torch.softmax, dim=1),
    ... )

    The ``predict_nonlinearity`` is needed because skorch knows the losses of torch only. The state
    is saved as that of any criterion: ``net.save_params(f_criterion=...)``, or by skorch's
    ``Checkpoint``.
    """

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:  # noqa: N803
        """Check what skorch cannot know."""
        criterion = net.criterion_
        if not isinstance(criterion, Criterion):
            raise ArgumentError(
                f"criterion must be a classwise.Criterion for StartEpoch, the net's is "
                f"{type(criterion).__name__}."
            )
        if net.predict_nonlinearity == "auto":
            raise ArgumentError(
                "predict_nonlinearity='auto' would take logits for probabilities; pass "
                "functools.partial(torch.softmax, dim=1), or None if that is what you want."
            )
        if not net.history and criterion.epoch >= 0:
            raise StateError(
                f"the criterion has been trained with up to epoch {criterion.epoch}; make another, "
                "or pass criterion=classwise.Criterion and criterion__method=..., of which skorch "
                "makes one for each fit."
            )

    def on_epoch_begin(
        self, net: Any, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any
    ) -> None:
        """Start the epoch of the criterion; skorch has just begun to record it."""
        epoch = len(net.history) - 1
        if epoch >= net.criterion_.epochs:
            raise StateError(
                f"epoch {epoch} begins, and the criterion plays over "
                f"epochs={net.criterion_.epochs}; give the net the same max_epochs."
            )
        net.criterion_.start_epoch(epoch)


class ImbalancedClassifier(ClassifierMixin, BaseEstimator):
    """A classifier for skewed classes, as scikit-learn's: numbers in, class labels out.

    It trains a torch module with a ``classwise.Criterion`` on the counts of ``y``. As with
    ``class_weight="balanced"`` elsewhere, it aims at the balanced accuracy, so score it with
    ``scoring="balanced_accuracy"``: ``score`` is the accuracy, as scikit-learn wants it.
    ``predict_proba`` is likewise for balanced classes. Features are not scaled: put a
    ``StandardScaler`` before it.

    Args:
        method: a name such as ``"cvs+adrw"`` (see ``classwise.list_methods``) or a
            ``classwise.Recipe``; not one that needs cosine logits or features.
        tau: hyper-parameter of the method; None is its default. So are the next two.
        gamma: likewise.
        nu: likewise.
        criterion_params: what else ``classwise.Criterion`` takes, such as ``{"defer_at": 0.5}``.
        module: (num_features, num_classes) -> torch module that returns logits, or such a module,
            which is copied; None is ``mlp``. Modules may take inputs of more than two dimensions.
        hidden: widths of the hidden layers of ``mlp``.
        max_epochs: of training.
        lr: of AdamW.
        weight_decay: of AdamW.
        batch_size: of training and prediction.
        net_params: what else ``skorch.NeuralNetClassifier`` takes, such as
            ``{"optimizer": torch.optim.SGD}``.
        device: of the module.
        random_state: seed of initialisation and order; torch's global generator is left alone.

    Attributes:
        classes_: labels, in the order of the probabilities' columns.
        class_counts_: training counts, int64 (C,).
        n_features_in_: columns of ``X``.
        net_: the trained ``skorch.NeuralNetClassifier``; its ``criterion_`` and ``history`` too.

    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> X[50:] += 3
    >>> y = np.array(["often"] * 50 + ["seldom"] * 10)
    >>> model = ImbalancedClassifier("la", max_epochs=20, random_state=0).fit(X, y)
    >>> model.predict([[3, 3], [0, 0]]).tolist()
    ['seldom', 'often']
    """

    def __init__(
        self,
        method: str | Recipe = "cvs+adrw",
        *,
        tau: float | None = None,
        gamma: float | None = None,
        nu: float | None = None,
        criterion_params: Mapping[str, Any] | None = None,
        module: Callable[[int, int], nn.Module] | nn.Module | None = None,
        hidden: Sequence[int] = (128,),
        max_epochs: int = 100,
        lr: float = 3e-3,
        weight_decay: float = 1e-2,
        batch_size: int = 64,
        net_params: Mapping[str, Any] | None = None,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.tau = tau
        self.gamma = gamma
        self.nu = nu
        self.criterion_params = criterion_params
        self.module = module
        self.hidden = hidden
        self.max_epochs = max_epochs
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.net_params = net_params
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Train on samples and their labels.

        Args:
            X: numbers (N, D), or (N, D, d1, ...) with a module that takes them.
            y: labels (N,), of any kind, at least two different ones.
        """
        whole_number("max_epochs", self.max_epochs, low=1)
        whole_number("batch_size", self.batch_size, low=1)
        number("lr", self.lr, low=0)
        number("weight_decay", self.weight_decay, low=0)
        X, y = validate_data(  # noqa: N806
            self, X, y, dtype=np.float32, allow_nd=self.module is not None, order="C"
        )
        check_classification_targets(y)
        self.classes_, target = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise ArgumentError(f"y holds one class only, {only!r}; 2 are needed.")
        self.class_counts_ = np.bincount(target)
        criterion = self._criterion()
        # sklearn's convention: None draws from numpy's global generator.
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        cuda = [] if torch.device(self.device).type != "cuda" else None  # None: all of them
        with torch.random.fork_rng(devices=cuda):
            torch.manual_seed(seed)
            self.net_ = self._net(X.shape[1], criterion)
            self.net_.fit(_writable(X), target.astype(np.int64))
        history: Any = self.net_.history
        loss = history[-1, "train_loss"]
        if not math.isfinite(loss):
            raise StateError(f"training diverged, its last loss is {loss}: scale X, or lower lr.")
        return self

    def _criterion(self) -> Criterion:
        given = {name: getattr(self, name) for name in _HYPER}
        hyper = {name: value for name, value in given.items() if value is not None}
        more = _settings("criterion_params", self.criterion_params, _OF_THE_CRITERION)
        criterion = Criterion(
            self.method, self.class_counts_, epochs=self.max_epochs, **{**hyper, **more}
        )
        if criterion.recipe.needs_cosine_head or criterion.recipe.needs_features:
            needs = "cosine logits" if criterion.recipe.needs_cosine_head else "features"
            raise ArgumentError(
                f"method={criterion.recipe.name!r} needs {needs}, which this estimator does not "
                "pass on; use skorch with StartEpoch and a module of your own."
            )
        return criterion

    def _net(self, num_features: int, criterion: Criterion) -> NeuralNetClassifier:
        num_classes = len(self.classes_)
        if isinstance(self.module, nn.Module):
            module = copy.deepcopy(self.module)
        elif self.module is None:
            module = mlp(num_features, num_classes, self.hidden)
        else:
            module = self.module(num_features, num_classes) if callable(self.module) else None
        if not isinstance(module, nn.Module):
            raise ArgumentError(
                f"module={self.module!r} must be a torch module, or a function of "
                "(num_features, num_classes) that returns one."
            )
        settings: dict[str, Any] = {
            "optimizer": torch.optim.AdamW,
            "optimizer__weight_decay": self.weight_decay,
            "lr": self.lr,
            "max_epochs": self.max_epochs,
            "batch_size": self.batch_size,
            "iterator_train__shuffle": True,
            "train_split": None,
            "verbose": 0,
            "device": self.device,
            **_settings("net_params", self.net_params, _OF_THE_NET),
        }
        callbacks = [("start_epoch", StartEpoch()), *(settings.pop("callbacks", None) or [])]
        return NeuralNetClassifier(
            module,
            criterion=criterion,  # type: ignore[arg-type]  # skorch takes instances too
            callbacks=callbacks,
            classes=np.arange(num_classes),
            predict_nonlinearity=functools.partial(torch.softmax, dim=1),
            **settings,
        )

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the probability of each class, (N, C), for classes that are equally frequent."""
        check_is_fitted(self, "net_")
        X = validate_data(  # noqa: N806
            self, X, dtype=np.float32, allow_nd=self.module is not None, order="C", reset=False
        )
        with torch.random.fork_rng(devices=[]):  # a DataLoader draws a number that nobody needs
            probability = self.net_.predict_proba(_writable(X))
        if probability.shape != (len(X), len(self.classes_)):
            raise StateError(
                f"the module returned logits of shape {probability.shape} for {len(X)} samples and "
                f"{len(self.classes_)} classes."
            )
        return probability

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the likeliest label of each sample, (N,)."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]


def _settings(
    argument: str, given: Mapping[str, Any] | None, taken: Mapping[str, str]
) -> dict[str, Any]:
    """Return further settings, without those that are said elsewhere."""
    if given is not None and not isinstance(given, Mapping):
        raise ArgumentError(f"{argument}={given!r} must be a dictionary or None.")
    settings = dict(given or {})
    for name in taken.keys() & settings.keys():
        raise ArgumentError(f"{argument} may not hold {name!r}: {taken[name]}.")
    return settings


def _writable(array: np.ndarray) -> np.ndarray:
    """Return an array that torch may take without a copy of its own and without a warning."""
    return array if array.flags.writeable else array.copy()
