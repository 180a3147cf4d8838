"""Sentences of three topics, two of them rare, with a small BERT in Hugging Face's Trainer.

    python examples/transformers_trainer.py [--quick] [--compare] [--json FILE]

The model is made from a configuration and the sentences by this file: nothing is downloaded.
``--compare`` trains several methods over several seeds. ``Trainer`` lets the learning rate fall to
0, which leaves little to learn for a phase that begins late.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

import classwise as cw
from classwise.adapters.transformers import ImbalanceLoss, class_counts_from

TOPICS = {
    "weather": ["rain", "wind", "sun", "cloud", "storm"],
    "harbour": ["ship", "rope", "wind", "mast", "storm"],
    "kitchen": ["salt", "pan", "sun", "flour", "rain"],
}
COUNTS = {"weather": 400, "harbour": 40, "kitchen": 12}
VOCABULARY = ["[PAD]", *sorted({word for words in TOPICS.values() for word in words}), "a", "the"]
LENGTH = 8
COLUMNS = ("balanced", "many", "medium", "few")
METHODS: list[tuple[str, str, dict[str, Any]]] = [
    ("la", "la", {}),
    ("ce", "ce", {}),
    ("vs", "vs", {}),
    ("ce+drw", "ce+drw", {}),
    ("cvs+adrw", "cvs+adrw", {}),
    ("cvs+adrw, T0 at 0.5", "cvs+adrw", {"defer_at": 0.5}),
    ("cla", "cla", {}),
]


def sentences(counts: dict[str, int], seed: int) -> list[dict[str, Any]]:
    """Return sentences of which some words tell the topic, and some mislead."""
    draw, rows = random.Random(seed), []
    for label, (topic, words) in enumerate(TOPICS.items()):
        for _ in range(counts[topic]):
            told = draw.choices(words, k=4) + draw.choices(VOCABULARY[1:], k=LENGTH - 4)
            draw.shuffle(told)
            rows.append({"input_ids": [VOCABULARY.index(word) for word in told], "labels": label})
    return rows


def train(criterion: cw.Criterion, rows: list[dict[str, Any]], seed: int = 0) -> dict[str, float]:
    """Train; return the metrics on equally many sentences of each topic."""
    set_seed(seed)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.1,
            num_labels=len(TOPICS),  # pyright: ignore[reportCallIssue]  # taken by the base class
        )
    )
    imbalance = ImbalanceLoss(criterion)  # <-
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            seed=seed,
            num_train_epochs=criterion.epochs,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=200,
            learning_rate=3e-3,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model,
            settings,
            train_dataset=rows,  # type: ignore[arg-type]  # a list is a data set
            eval_dataset=sentences(dict.fromkeys(TOPICS, 200), 1),  # type: ignore[arg-type]
            compute_loss_func=imbalance,  # <-
            callbacks=[imbalance],  # <-
            compute_metrics=imbalance.compute_metrics,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return trainer.evaluate()


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Train with one method or with several, print what they learn, and return it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1 epoch instead of 10")
    parser.add_argument("--compare", action="store_true", help="several methods, 3 seeds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    options = parser.parse_args(arguments)
    epochs, seeds = (1 if options.quick else 10), (3 if options.compare else 1)
    rows = sentences(COUNTS, 0)
    class_counts = class_counts_from(rows, "labels")
    found: list[dict[str, Any]] = []
    for name, method, settings in METHODS if options.compare else METHODS[:1]:
        runs = [
            train(cw.Criterion(method, class_counts, epochs=epochs, **settings), rows, seed)
            for seed in range(seeds)
        ]
        row = {key: [run[f"eval_acc_{key}"] for run in runs] for key in COLUMNS}
        found.append({"method": name, **row})
        cells = (f"{key} {sum(values) / seeds:>6.1%}" for key, values in row.items())
        print(f"{name:<24}" + "   ".join(cells))
    if options.json is not None:
        made_by = {"epochs": epochs, "seeds": seeds, "transformers": transformers.__version__}
        options.json.write_text(json.dumps({"made_by": made_by, "rows": found}, indent=1) + "\n")
    return found


if __name__ == "__main__":
    main()
