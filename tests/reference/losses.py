"""Losses and class terms as loops over float64 numbers, one equation after the other.

Terms are lists of Python floats. Losses are sums of float64 scalars of torch, so that autograd
gives the gradient of the naive formula. Nothing here is fast, and nothing imports the package.
"""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from functools import partial

import torch
from torch import Tensor

Vector = list[float]
Terms = dict[str, Vector]  # alpha, beta, delta, margin


# --------------------------------------------------------------------------- terms


def prior(counts: Sequence[int]) -> Vector:
    """pi_y = N_y / N; a class without samples counts as one sample."""
    filled = [max(n, 1) for n in counts]
    return [n / sum(filled) for n in filled]


def neutral(num_classes: int, **fields: Vector) -> Terms:
    """alpha = beta = 1, delta = margin = 0, but for the given fields."""
    ones, zeros = [1.0] * num_classes, [0.0] * num_classes
    return {"alpha": ones, "beta": ones, "delta": zeros, "margin": zeros} | fields


def ce(counts: Sequence[int]) -> Terms:
    """L = CE(z, y)."""
    return neutral(len(counts))


def balanced(counts: Sequence[int]) -> Terms:
    """alpha_y = 1 / pi_y."""
    return neutral(len(counts), alpha=[1 / pi for pi in prior(counts)])


def mean_one(weights: Vector) -> Vector:
    """w_y * C / sum(w)."""
    return [w * len(weights) / math.fsum(weights) for w in weights]


def power_weights(counts: Sequence[int], nu: float) -> Vector:
    """alpha_y ~ pi_y^-nu, mean 1."""
    return mean_one([pi**-nu for pi in prior(counts)])


def effective_number(counts: Sequence[int], p: float) -> Vector:
    """alpha_y ~ (1 - p) / (1 - p^N_y), mean 1; in 60 digits, floats lose them next to p = 1."""
    with localcontext(prec=60):
        exact = Decimal(p)
        return mean_one([float((1 - exact) / (1 - exact ** max(n, 1))) for n in counts])


def class_balanced(counts: Sequence[int], p: float) -> Terms:
    """alpha_y ~ (1 - p) / (1 - p^N_y), mean 1."""
    return neutral(len(counts), alpha=effective_number(counts, p))


def la(counts: Sequence[int], tau: float) -> Terms:
    """delta_y = tau * log(pi_y)."""
    return neutral(len(counts), delta=[tau * math.log(pi) for pi in prior(counts)])


def cdt(counts: Sequence[int], gamma: float) -> Terms:
    """beta_y = (N_y / N_1)^gamma."""
    filled = [max(n, 1) for n in counts]
    return neutral(len(counts), beta=[(n / max(filled)) ** gamma for n in filled])


def vs(counts: Sequence[int], tau: float, gamma: float) -> Terms:
    """beta_y = (N_y / N_1)^gamma, delta_y = tau * log(pi_y)."""
    return la(counts, tau) | {"beta": cdt(counts, gamma)["beta"]}


def ldam(counts: Sequence[int], max_margin: float, scale: float) -> Terms:
    """beta = s, margin_y = s * max_margin * N_y^(-1/4) / max_c N_c^(-1/4)."""
    roots = [max(n, 1) ** -0.25 for n in counts]
    return neutral(
        len(counts),
        beta=[scale] * len(counts),
        margin=[scale * max_margin * root / max(roots) for root in roots],
    )


def mla(counts: Sequence[int], gamma: float, slopes: Sequence[float]) -> Terms:
    """beta_y = pi_y^gamma / kappa_y."""
    beta = [pi**gamma / kappa for pi, kappa in zip(prior(counts), slopes, strict=True)]
    return neutral(len(counts), beta=beta)


def cla(counts: Sequence[int], tau: float, slopes: Sequence[float]) -> Terms:
    """delta_y = tau * log(pi_y / kappa_y)."""
    delta = [tau * math.log(pi / kappa) for pi, kappa in zip(prior(counts), slopes, strict=True)]
    return neutral(len(counts), delta=delta)


# --------------------------------------------------------------------------- pieces


def log_sum_exp(values: Sequence[Tensor]) -> Tensor:
    """log sum_i exp(v_i), without overflow."""
    top = max(value.item() for value in values)
    total = torch.zeros((), dtype=torch.float64)
    for value in values:
        total = total + (value - top).exp()
    return top + total.log()


def odds_against(a: Sequence[Tensor], y: int) -> Tensor:
    """log((1 - p_y) / p_y) = log sum_{c != y} exp(a_c) - a_y."""
    return log_sum_exp([value for c, value in enumerate(a) if c != y]) - a[y]


def cross_entropy(a: Sequence[Tensor], y: int) -> Tensor:
    """-log softmax(a)_y = log(1 + sum_{c != y} exp(a_c - a_y)), with all its digits at p_y = 1."""
    d = odds_against(a, y)
    return d + (-d).exp().log1p() if d > 0 else d.exp().log1p()


def wrongness(a: Sequence[Tensor], y: int) -> Tensor:
    """1 - softmax(a)_y, with all its digits at p_y = 1."""
    d = odds_against(a, y)
    return 1 / (1 + (-d).exp()) if d > 0 else d.exp() / (1 + d.exp())


def distributions(target: Tensor, num_classes: int, ignore_index: int) -> list[Vector | None]:
    """q of each sample: one-hot for an index, as it is for probabilities, None where ignored."""
    if target.is_floating_point():
        return target.double().tolist()
    return [
        None if y == ignore_index else [float(c == y) for c in range(num_classes)]
        for y in target.tolist()
    ]


def reduced(
    losses: list[Tensor],
    targets: list[Vector | None],
    alpha: Sequence[float],
    reduction: str,
    normalize: str,
) -> Tensor:
    """sum_i l_i / sum_i sum_c q_ic alpha_c ("weights"), or / their number ("batch"); 0 / 0 is 0."""
    if reduction == "none":
        return torch.stack(losses)
    total = torch.stack(losses).sum()
    if reduction == "sum":
        return total
    counted = [q for q in targets if q is not None]
    mass = float(len(counted))
    if normalize == "weights":
        mass = math.fsum(q_c * a for q in counted for q_c, a in zip(q, alpha, strict=True))
    return total / mass if mass else total


def expectation(q: Vector | None, of_class: Callable[[int], Tensor], zero: Tensor) -> Tensor:
    """sum_c q_c L(z, c); 0 where ignored."""
    total = zero
    for c, q_c in enumerate(q or []):
        if q_c:
            total = total + q_c * of_class(c)
    return total


# --------------------------------------------------------------------------- losses


def vs_loss(
    logits: Tensor,
    target: Tensor,
    terms: Terms,
    *,
    reduction: str = "mean",
    normalize: str = "weights",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """L(z, q) = sum_c q_c alpha_c CE(beta * z + delta - margin_c * onehot(c), c).

    Label smoothing exchanges q by (1 - s) q + s / C, but not in what a mean divides by.
    """
    z, classes = logits.double(), logits.shape[1]
    targets = distributions(target, classes, ignore_index)

    def of_class(i: int, c: int) -> Tensor:
        a = [terms["beta"][k] * z[i, k] + terms["delta"][k] for k in range(classes)]
        a[c] = a[c] - terms["margin"][c]
        return terms["alpha"][c] * cross_entropy(a, c)

    s = label_smoothing
    smoothed = [q and [(1 - s) * q_c + s / classes for q_c in q] for q in targets]
    losses = [expectation(q, partial(of_class, i), 0 * z[i, 0]) for i, q in enumerate(smoothed)]
    return reduced(losses, targets, terms["alpha"], reduction, normalize)


def focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float,
    weight: Sequence[float],
    reduction: str = "mean",
    normalize: str = "weights",
    ignore_index: int = -100,
) -> Tensor:
    """L(z, q) = sum_c q_c w_c (1 - p_c)^gamma * -log p_c,  p = softmax(z)."""
    z, classes = logits.double(), logits.shape[1]
    targets = distributions(target, classes, ignore_index)

    def of_class(i: int, c: int) -> Tensor:
        a = [z[i, k] for k in range(classes)]
        return weight[c] * wrongness(a, c) ** gamma * cross_entropy(a, c)

    losses = [expectation(q, partial(of_class, i), 0 * z[i, 0]) for i, q in enumerate(targets)]
    return reduced(losses, targets, weight, reduction, normalize)


def influence_loss(
    logits: Tensor,
    target: Tensor,
    features: Tensor,
    *,
    weight: Sequence[float],
    strength: float,
    eps: float = 1e-3,
    detach: bool = False,
    reduction: str = "mean",
    normalize: str = "batch",
    ignore_index: int = -100,
) -> Tensor:
    """L(z, q) = sum_c q_c w_c strength / (||p - onehot(c)||_1 ||h||_1 + eps) * -log p_c."""
    z, h, classes = logits.double(), features.double(), logits.shape[1]
    targets = distributions(target, classes, ignore_index)

    def of_class(i: int, c: int) -> Tensor:
        a = [z[i, k] for k in range(classes)]
        error = wrongness(a, c)  # |p_c - 1|
        for k in range(classes):
            if k != c:
                error = error + (-cross_entropy(a, k)).exp()  # |p_k - 0|
        size = torch.zeros((), dtype=torch.float64)
        for d in range(h.shape[1]):
            size = size + h[i, d].abs()
        factor = strength / (error * size + eps)
        return weight[c] * (factor.detach() if detach else factor) * cross_entropy(a, c)

    losses = [expectation(q, partial(of_class, i), 0 * z[i, 0]) for i, q in enumerate(targets)]
    return reduced(losses, targets, weight, reduction, normalize)


def lade_loss(
    logits: Tensor,
    target: Tensor,
    counts: Sequence[int],
    *,
    weight: float,
    remine: float,
    ignore_index: int = -100,
) -> Tensor:
    """L = mean_i CE(z_i + log pi, y_i) - weight * sum_c pi_c (T1_c - T2_c - remine * T2_c^2).

    T1_c = sum_i q_ic z_ic / (sum_i q_ic + 1e-8),
    T2_c = logsumexp_i(z_ic - log pi_c - log C) - log N, both over the samples that count.
    """
    z, pi = logits.double(), prior(counts)
    classes = len(pi)
    loss = vs_loss(z, target, la(counts, 1.0), normalize="batch", ignore_index=ignore_index)
    targets = distributions(target, classes, ignore_index)
    counted = [(i, q) for i, q in enumerate(targets) if q is not None]
    for c in range(classes) if counted else []:
        inside, members = 0 * z[0, 0], 0.0
        for i, q in counted:
            inside, members = inside + q[c] * z[i, c], members + q[c]
        first = inside / (members + 1e-8)
        second = log_sum_exp([z[i, c] - math.log(pi[c]) - math.log(classes) for i, _ in counted])
        second = second - math.log(len(counted))
        loss = loss - weight * pi[c] * (first - second - remine * second * second)
    return loss


def ala_loss(
    logits: Tensor,
    target: Tensor,
    counts: Sequence[int],
    *,
    scale: float,
    weight: Sequence[float],
    reduction: str = "mean",
    normalize: str = "weights",
    ignore_index: int = -100,
) -> Tensor:
    """L(z, q) = sum_c q_c w_c CE(s * (z - D_c Q_c onehot(c)), c).

    D_c = (1 - z_c) / 2 without gradient, Q_c = 1 / log(N_c / N_C + 1).
    """
    z, classes = logits.double(), logits.shape[1]
    filled = [max(n, 1) for n in counts]
    targets = distributions(target, classes, ignore_index)

    def of_class(i: int, c: int) -> Tensor:
        difficulty = (1 - z[i, c].item()) / 2
        quantity = 1 / math.log(filled[c] / min(filled) + 1)
        a = [scale * z[i, k] for k in range(classes)]
        a[c] = a[c] - scale * difficulty * quantity
        return weight[c] * cross_entropy(a, c)

    losses = [expectation(q, partial(of_class, i), 0 * z[i, 0]) for i, q in enumerate(targets)]
    return reduced(losses, targets, weight, reduction, normalize)
