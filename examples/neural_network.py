"""Train a small neural network to read handwritten digits, with tapegrad and NumPy alone.

The data are the 1797 images, 8 by 8 pixels in 17 shades, of the test part of "Optical
Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, UCI Machine Learning
Repository, CC BY 4.0), in the copy that scikit-learn distributes.  One image in five is kept for
testing.  The network has one hidden layer; the loss is the cross entropy, minimised by Adam on
minibatches; all of this is implemented below.

    python examples/neural_network.py                    # a few seconds, neural_network.png
    python examples/neural_network.py --epochs 60 --hidden 256 --seed 1
    python examples/neural_network.py --jit              # the loss is recorded once and compiled

The exit code is 1 if fewer than 96 % of the test images are read correctly.  rich (progress bar)
and Matplotlib (picture) are used if installed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

import tapegrad as tg

DATA = Path(__file__).parent / "data" / "digits.csv.gz"
REQUIRED_ACCURACY = 0.96


def load(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Training images and labels, test images and labels."""
    table = np.loadtxt(DATA, delimiter=",")  # 64 pixels from 0 to 16, and the digit
    images, labels = table[:, :-1] / 16.0, table[:, -1].astype(int)
    order = rng.permutation(len(images))
    test, train = np.split(order, [len(images) // 5])
    return images[train], labels[train], images[test], labels[test]


# --- the network -------------------------------------------------------------------------------


def initialise(sizes: Sequence[int], rng: np.random.Generator) -> list[tg.Tensor]:
    """Weights and biases of all layers, in turn."""
    parameters = []
    for inputs, outputs in pairwise(sizes):
        weights = rng.normal(scale=inputs**-0.5, size=(inputs, outputs))
        parameters.append(tg.tensor(weights, requires_grad=True))
        parameters.append(tg.tensor(np.zeros(outputs), requires_grad=True))
    return parameters


def logits(parameters: Sequence[tg.Tensor], images: np.ndarray) -> tg.Tensor:
    *hidden, weights, biases = parameters
    x = images
    for w, b in zip(hidden[::2], hidden[1::2], strict=True):
        x = tg.tanh(x @ w + b)
    return x @ weights + biases


def cross_entropy(scores: tg.Tensor, labels: np.ndarray) -> tg.Tensor:
    right = scores[np.arange(len(labels)), labels]
    return tg.mean(tg.logsumexp(scores, axis=1) - right)


def loss_of(parameters: Sequence[tg.Tensor], images: np.ndarray, labels: np.ndarray) -> tg.Tensor:
    return cross_entropy(logits(parameters, images), labels)


class Adam:
    """Kingma and Ba (2015): steps scaled by running moments of the gradient."""

    def __init__(self, parameters: Sequence[tg.Tensor], rate: float) -> None:
        self.parameters = list(parameters)
        self.rate = rate
        self.mean = [np.zeros(p.shape) for p in self.parameters]
        self.square = [np.zeros(p.shape) for p in self.parameters]
        self.steps = 0

    def step(self) -> None:
        """Move along the gradients that ``backward()`` has left in the parameters."""
        self.steps += 1
        bias1, bias2 = 1 - 0.9**self.steps, 1 - 0.999**self.steps
        with tg.no_grad():
            for p, mean, square in zip(self.parameters, self.mean, self.square, strict=True):
                gradient = p.grad.numpy()
                mean += 0.1 * (gradient - mean)
                square += 0.001 * (gradient**2 - square)
                p -= self.rate * (mean / bias1) / (np.sqrt(square / bias2) + 1e-8)
                p.grad = None


# --- training ----------------------------------------------------------------------------------


def evaluate(parameters, images, labels) -> tuple[float, np.ndarray]:
    """Loss, and the digits read."""
    with tg.no_grad():
        scores = logits(parameters, images)
        return cross_entropy(scores, labels).item(), scores.numpy().argmax(axis=1)


def progress(epochs: int) -> Iterator[int]:
    """Count the epochs, with a progress bar where rich is installed."""
    try:
        from rich.progress import track
    except ImportError:
        for epoch in range(epochs):
            print(f"\repoch {epoch + 1} of {epochs}", end="", flush=True)
            yield epoch
        print()
        return
    yield from track(range(epochs), description="training")


def train(
    parameters: Sequence[tg.Tensor],
    data: tuple[np.ndarray, ...],
    epochs: Iterable[int],
    batch: int,
    rate: float,
    rng: np.random.Generator,
    loss_of: Callable[..., tg.Tensor],
) -> np.ndarray:
    """Returns the history: after every epoch train loss, test loss, train and test accuracy."""
    images, labels, test_images, test_labels = data
    optimiser = Adam(parameters, rate)
    history = []
    for _ in epochs:
        order = rng.permutation(len(images))
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch]
            loss = loss_of(parameters, images[chosen], labels[chosen])
            loss.backward()
            optimiser.step()
        train_loss, read = evaluate(parameters, images, labels)
        test_loss, test_read = evaluate(parameters, test_images, test_labels)
        accuracies = np.mean(read == labels), np.mean(test_read == test_labels)
        history.append((train_loss, test_loss, *accuracies))
    return np.array(history)


# --- report ------------------------------------------------------------------------------------


def draw(history: np.ndarray, images, labels, read, path: Path) -> None:
    """Loss and accuracy by epoch, and the test images that were misread."""
    try:
        import matplotlib
    except ImportError:
        print("No picture: Matplotlib is missing (pip install matplotlib)", file=sys.stderr)
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    epochs = np.arange(1, len(history) + 1)
    figure = plt.figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subfigures(1, 3, width_ratios=(1, 1, 0.9))

    axis = left.subplots()
    axis.semilogy(epochs, history[:, 0], color="C0", label="training")
    axis.semilogy(epochs, history[:, 1], color="C3", label="test")
    axis.set(xlabel="epoch", title="cross entropy")
    axis.legend(frameon=False)

    accuracy = middle.subplots()
    accuracy.plot(epochs, 100 * history[:, 2], color="C0")
    accuracy.plot(epochs, 100 * history[:, 3], color="C3")
    accuracy.axhline(100 * REQUIRED_ACCURACY, color="0.6", lw=0.8, ls="--")
    accuracy.set(xlabel="epoch", title="digits read correctly, %", ylim=(85, 100.3))
    for each in (axis, accuracy):
        each.spines[["top", "right"]].set_visible(False)

    wrong = np.flatnonzero(read != labels)
    shown = wrong[:16]
    columns = 4
    panels = right.subplots(max(2, -(-len(shown) // columns)), columns, squeeze=False)
    for panel in panels.flat:
        panel.axis("off")
    for panel, index in zip(panels.flat, shown, strict=False):
        panel.imshow(images[index].reshape(8, 8), cmap="gray_r")
        panel.set_title(f"{labels[index]}, read {read[index]}", fontsize=8)
    right.suptitle(f"misread test images ({len(shown)} of {len(wrong)})")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"picture: {path}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64, help="images in a minibatch")
    parser.add_argument("--hidden", type=int, default=128, help="units of the hidden layer")
    parser.add_argument("--rate", type=float, default=0.003, help="step size of Adam")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jit", action="store_true", help="record the loss once, and compile it")
    parser.add_argument("--output", type=Path, default=Path("neural_network.png"))
    arguments = parser.parse_args()

    rng = np.random.default_rng(arguments.seed)
    data = load(rng)
    images, labels, test_images, test_labels = data
    parameters = initialise((images.shape[1], arguments.hidden, 10), rng)
    count = sum(p.size for p in parameters)
    print(f"{len(labels)} training images, {len(test_labels)} test images, {count} parameters")

    began = time.perf_counter()
    epochs = progress(arguments.epochs)
    loss = tg.jit(loss_of) if arguments.jit else loss_of
    history = train(parameters, data, epochs, arguments.batch, arguments.rate, rng, loss)
    seconds = time.perf_counter() - began

    train_loss, test_loss, train_accuracy, test_accuracy = history[-1]
    print(f"training: {train_accuracy:.2%} correct, loss {train_loss:.4f}")
    print(f"test:     {test_accuracy:.2%} correct, loss {test_loss:.4f}")
    print(f"{arguments.epochs} epochs in {seconds:.1f} s")
    _, read = evaluate(parameters, test_images, test_labels)
    draw(history, test_images, test_labels, read, arguments.output)
    return 0 if test_accuracy >= REQUIRED_ACCURACY else 1


if __name__ == "__main__":
    raise SystemExit(main())
