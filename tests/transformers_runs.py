"""Hugging Face trainings for the tests, which ranks can import as well."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning_runs import rank_environment
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import classwise as cw
from classwise.adapters.transformers import ImbalanceLoss

COUNTS = [120, 40, 8]
EPOCHS = 3
STEP = 8  # samples of an optimiser step, over all micro-batches and processes
SMALL: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": 3,
}
WORDS = ["the", "cat", "dog", "fish", "saw", "a", "big", "small", "one", "ran"]


SIZE = 28  # the last step of an epoch is half of one
EVEN = 32  # for two processes: accelerate repeats samples until each has as many batches


def text(size: int = SIZE) -> list[dict[str, Any]]:
    """Return sentences of six words; their last word tells the class, which is skewed."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.multinomial(torch.tensor(COUNTS) / 1.0, size, True, generator=generator)
    words = torch.randint(4, len(WORDS), (size, 6), generator=generator)
    words[:, -1] = labels + 1
    return [{"input_ids": w, "labels": int(y)} for w, y in zip(words, labels, strict=True)]


def tokens(size: int = SIZE) -> list[dict[str, Any]]:
    """Return sentences with a label for each word; the first and some others do not count."""
    rows = []
    for row in text(size):
        labels = (row["input_ids"] % 3).clone()
        labels[0] = -100
        labels[1 : 1 + 2 * row["labels"]] = -100  # sentences of different weight
        rows.append({"input_ids": row["input_ids"], "labels": labels})
    return rows


def images(size: int = SIZE) -> list[dict[str, Any]]:
    """Return images of 8 x 8 pixels, brighter for later classes."""
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "pixel_values": torch.randn(3, 8, 8, generator=generator).double() + row["labels"],
            "labels": row["labels"],
        }
        for row in text(size)
    ]


def model(kind: str = "text") -> nn.Module:
    """Return a small BERT or ViT in double precision, made from its configuration."""
    torch.manual_seed(3)
    bert = BertConfig(vocab_size=len(WORDS), max_position_embeddings=8, **SMALL)
    if kind == "text":
        return BertForSequenceClassification(bert).double()
    if kind == "tokens":
        return BertForTokenClassification(bert).double()
    return ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **SMALL)).double()


DATA = {"text": text, "tokens": tokens, "images": images}


def new_criterion(method: str = "cvs+adrw", **settings: Any) -> cw.Criterion:
    """Return the criterion of all tests: every part of it matters within three epochs."""
    settings = {"epochs": EPOCHS, "defer_at": 2, "warmup": 1, "slopes": "paper", **settings}
    return cw.Criterion(method, COUNTS, **settings)


def arguments(folder: Path | str, **settings: Any) -> TrainingArguments:
    """Return quiet arguments that read the data in order."""
    settings = {
        "per_device_train_batch_size": STEP,
        "num_train_epochs": EPOCHS,
        "max_grad_norm": 0.0,
        "train_sampling_strategy": "sequential",
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_strategy": "epoch",
        "dataloader_pin_memory": False,
        **settings,
    }
    return TrainingArguments(output_dir=str(folder), **settings)


def new_trainer(
    folder: Path | str,
    imbalance: ImbalanceLoss,
    *,
    kind: str = "text",
    attach: bool = False,
    network: nn.Module | None = None,
    settings: dict[str, Any] | None = None,
    size: int = SIZE,
    **more: Any,
) -> Trainer:
    """Return a trainer with plain SGD."""
    network = network or model(kind)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    by_hand: dict[str, Any] = {"compute_loss_func": imbalance, "callbacks": [imbalance]}
    data: Any = DATA[kind](size)
    trainer = Trainer(
        network,
        arguments(folder, **(settings or {})),
        train_dataset=data,
        eval_dataset=data,
        optimizers=(optimizer, constant),
        **({} if attach else by_hand),
        **more,
    )
    return imbalance.attach(trainer) if attach else trainer


def logits_of(network: Any, kind: str, rows: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    """Return logits with the classes in the second dimension, and labels."""
    name = "pixel_values" if kind == "images" else "input_ids"
    outputs = network(**{name: torch.stack([row[name] for row in rows])}).logits
    labels = torch.stack([torch.as_tensor(row["labels"]) for row in rows])
    return (outputs.transpose(1, 2) if kind == "tokens" else outputs), labels


def by_hand(
    criterion: cw.Criterion, kind: str = "text", size: int = SIZE
) -> tuple[nn.Module, cw.Criterion]:
    """Train what the trainer trains, in a plain loop over whole batches."""
    network, criterion, data = model(kind), copy.deepcopy(criterion), DATA[kind](size)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
    for epoch in range(EPOCHS):
        criterion.start_epoch(epoch)
        for start in range(0, len(data), STEP):
            optimizer.zero_grad()
            criterion(*logits_of(network, kind, data[start : start + STEP])).backward()
            optimizer.step()
    return network, criterion


def head(network: Any) -> Tensor:
    """Return the weights of the last layer."""
    return network.classifier.weight.detach()


def on_a_rank(rank: int, folder: str) -> dict[str, Any]:
    """Train on one of two ranks, with and without accumulation; save, resume and evaluate."""
    rank_environment(rank, 2)
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for kind in ("text", "tokens"):
        for micro in (4, 2):
            imbalance = ImbalanceLoss(new_criterion())
            settings = {
                "per_device_train_batch_size": micro,
                "gradient_accumulation_steps": 4 // micro,
                "save_strategy": "steps",
                "save_steps": 6,
            }
            out = f"{folder}/{kind}{micro}"
            ways: dict[str, Any] = {
                "kind": kind,
                "attach": micro == 2,
                "settings": settings,
                "size": EVEN,
            }
            trainer = new_trainer(out, imbalance, **ways)
            trainer.train()
            resumed = ImbalanceLoss(new_criterion())
            other = new_trainer(out, resumed, **ways)
            other.train(resume_from_checkpoint=f"{out}/checkpoint-6")
            found[f"{kind}{micro}"] = {
                "head": head(trainer.model),
                "kappa": imbalance.criterion.kappa_plus,
                "resumed": head(other.model),
                "resumed_kappa": resumed.criterion.kappa_plus,
                "eval_loss": trainer.evaluate()["eval_loss"],
            }
    return found
