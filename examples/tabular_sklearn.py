"""Tables with few samples of some classes: this library beside scikit-learn's own answers.

    python examples/tabular_sklearn.py [--quick] [--json FILE]

The tables are those that scikit-learn brings. Of each, an equal number of samples of every class is
the test set, and the rest is cut so that the largest class has many times the samples of the
smallest; the classes change places from seed to seed. Settings are the same for all tables, and
nothing is tuned.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import classwise as cw
from classwise.adapters.sklearn import ImbalancedClassifier

# name -> (loader, test samples of each class, largest training class, imbalance ratio)
TABLES: dict[str, tuple[Callable[..., Any], int, int, int]] = {
    "digits": (load_digits, 50, 120, 50),
    "breast cancer": (load_breast_cancer, 60, 150, 30),
    "wine": (load_wine, 15, 33, 10),
    "iris": (load_iris, 15, 35, 10),
}


def models(epochs: int, seed: int) -> dict[str, Any]:
    """Return what is compared, by name."""

    def network(method: str, **settings: Any) -> ImbalancedClassifier:
        return ImbalancedClassifier(method, max_epochs=epochs, random_state=seed, **settings)

    return {
        "LogisticRegression": LogisticRegression(max_iter=1000),
        "LogisticRegression, balanced": LogisticRegression(max_iter=1000, class_weight="balanced"),
        "MLP, ce": network("ce"),
        "MLP, balanced": network("balanced"),
        "MLP, la": network("la"),
        "MLP, cvs": network("cvs"),
        "MLP, cvs+adrw": network("cvs+adrw"),
    }


def long_tailed(name: str, seed: int) -> tuple[np.ndarray, ...]:
    """Return training inputs and labels, test inputs and labels."""
    loader, tested, largest, ratio = TABLES[name]
    inputs, labels = loader(return_X_y=True)
    generator = torch.Generator().manual_seed(seed)
    classes = int(labels.max()) + 1
    order = torch.randperm(classes, generator=generator)
    target = order[torch.from_numpy(labels).long()]  # which class is rare differs by seed
    test = cw.select(target, [tested] * classes, generator)
    rest = torch.ones(len(target), dtype=torch.bool).index_fill(0, test, False).nonzero().flatten()
    counts = cw.longtail_counts(largest, classes, imbalance_ratio=ratio)
    # A class may have fewer samples left than its place in the profile asks for.
    counts = torch.minimum(torch.as_tensor(counts), target[rest].bincount(minlength=classes))
    train = rest[cw.select(target[rest], counts, generator)]
    y = target.numpy()
    return inputs[train], y[train], inputs[test], y[test]


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Train everything on everything and print balanced accuracies; return the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 epochs and 1 seed, not 100 and 10")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    options = parser.parse_args(arguments)
    epochs, seeds = (2, 1) if options.quick else (100, 10)
    names = list(models(epochs, 0))
    scores: dict[str, dict[str, list[float]]] = {name: {t: [] for t in TABLES} for name in names}
    for table in TABLES:
        for seed in range(seeds):
            x, y, test_x, test_y = long_tailed(table, seed)
            for name, model in models(epochs, seed).items():
                fitted = make_pipeline(StandardScaler(), model).fit(x, y)
                score = balanced_accuracy_score(test_y, fitted.predict(test_x))
                scores[name][table].append(float(score))
    rows = [{"model": name, **scores[name]} for name in names]
    print(f"{'balanced accuracy, percent':<30}" + "".join(f"{table:>18}" for table in TABLES))
    for row in rows:
        print(f"{row['model']:<30}" + "".join(f"{cell(row[table]):>18}" for table in TABLES))
    if options.json is not None:
        made_by = {"epochs": epochs, "seeds": seeds, "scikit-learn": sklearn.__version__}
        shape = {
            table: f"{largest}, ratio {ratio}" for table, (_, _, largest, ratio) in TABLES.items()
        }
        report = {"made_by": made_by, "tables": shape, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return rows


def cell(values: Sequence[float]) -> str:
    """Return mean and standard deviation in percent."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):.1f} ± {100 * spread:.1f}"


if __name__ == "__main__":
    main()
