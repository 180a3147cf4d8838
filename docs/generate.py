"""Write the generated parts of README and docs, from registries and from measured results.

Text between ``<!-- generated: NAME -->`` and ``<!-- end -->`` is replaced by what the function of
that name returns. ``--check`` changes nothing and fails where something would change.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from blocks import commands, loops, measured, methods, registries, speed

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"(<!-- generated: ([a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

PARTS: dict[str, Callable[[], str]] = {
    "commands": commands.commands,
    "demo": measured.demo,
    "exhibits": registries.exhibits,
    "grids": methods.grids,
    "methods": methods.methods,
    "methods-in-full": methods.methods_in_full,
    "models": registries.models,
    "needs": registries.needs,
    "presets": methods.presets,
    "priors": loops.priors,
    "protocols": commands.protocols,
    "results-cifar100": measured.cifar100,
    "results-paper": measured.paper,
    "results-studies": measured.studies,
    "run-settings": commands.run_settings,
    "schedules": commands.schedules,
    "segmentation": loops.segmentation,
    "shared-flags": commands.shared_flags,
    "sources": registries.sources,
    "speed-criterion": speed.criterion,
    "speed-ends": speed.ends,
    "speed-linear": speed.linear,
    "speed-pipeline": speed.pipeline,
    "speed-starting": speed.starting,
    "speed-statistics": speed.statistics,
    "speed-targets": speed.targets,
    "speed-training": speed.training,
    "suffixes": methods.suffixes,
    "tabular": loops.tabular,
    "topics": loops.topics,
    "usage": commands.usage,
}


def written(text: str) -> str:
    """Return a document with its generated parts made anew; those without a function are kept."""

    def made(found: re.Match[str]) -> str:
        if found[2] not in PARTS:
            return found[0]
        return f"{found[1]}\n{PARTS[found[2]]().rstrip()}\n\n{found[3]}"

    return MARKED.sub(made, text)


def documents() -> Iterator[Path]:
    """Yield the files that may have generated parts."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def main(arguments: Sequence[str]) -> int:
    """Write all documents, or check them."""
    wrong = []
    for path in documents():
        old = path.read_text(encoding="utf-8")
        where = path.relative_to(ROOT)
        for _, name, _ in MARKED.findall(old):
            if name not in PARTS:
                wrong.append(f"{where}: there is no function for the part {name!r}.")
        new = written(old)
        if new != old and "--check" in arguments:
            wrong.append(f"{where} is not up to date; run `make docs`.")
        elif new != old:
            path.write_text(new, encoding="utf-8")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
