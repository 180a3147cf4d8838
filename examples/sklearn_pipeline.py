"""Tumours of which few are malignant: an estimator in a scikit-learn pipeline, and a grid search.

python examples/sklearn_pipeline.py [--quick]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import classification_report
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from classwise.adapters.sklearn import ImbalancedClassifier

SEED = 0
RARE = 12


def main(arguments: Sequence[str] | None = None) -> float:
    """Search for tau, print what the best one does, and return its score in the search."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 epochs instead of 60")
    epochs = 3 if parser.parse_args(arguments).quick else 60
    inputs, target = load_breast_cancer(return_X_y=True)
    names = np.array(["malignant", "benign"])[target]
    train_x, test_x, train_y, test_y = train_test_split(
        inputs, names, test_size=0.4, stratify=names, random_state=SEED
    )
    malignant = np.flatnonzero(train_y == "malignant")
    kept = np.delete(np.arange(len(train_y)), malignant[RARE:])

    model = make_pipeline(
        StandardScaler(),
        ImbalancedClassifier("la", max_epochs=epochs, random_state=SEED),
    )
    search = GridSearchCV(
        model,
        {"imbalancedclassifier__tau": [0.0, 0.5, 1.0, 1.5]},
        scoring="balanced_accuracy",
        cv=3,
    )
    search.fit(train_x[kept], train_y[kept])
    print(f"best: {search.best_params_}, balanced accuracy {search.best_score_:.3f} in the search")
    print(classification_report(test_y, search.predict(test_x), digits=3))
    return float(search.best_score_)


if __name__ == "__main__":
    main()
