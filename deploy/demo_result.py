"""What a filed demo job left behind and changed. Exit status 0 only if its eval loss fell clearly."""

import sys
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.markdown import Markdown
from rich.tree import Tree

from finetuned.core.job import Stage
from finetuned.host.jobdir import JobDir
from finetuned.host.journal import HistoryReader

CLEARLY = 0.9
"""Of the loss before. A run that learned nothing stays within a percent of it; this demo's falls to about a half."""


def main() -> None:
    job = JobDir(Path(sys.argv[1]))
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print("\n== The artifacts")
    console.print(tree_of(job.artifacts))
    console.print("\n== The same held-out questions, before and after")
    samples = (job.artifacts / "samples.md").read_text()
    if console.is_terminal:
        console.print(Markdown(samples))
    else:
        print(samples)
    progress = HistoryReader(job.events_file(Stage.TRAIN)).read().progress
    before, after = progress.first_eval_loss, progress.best_eval_loss
    if before is None or after is None:
        sys.exit("this job was not evaluated before and after training")
    console.print("\n== Eval loss on the held-out questions")
    console.print(f"before {before:.3f}   after {after:.3f}")
    if not after < CLEARLY * before:
        sys.exit("the eval loss did not fall clearly")


def tree_of(folder: Path) -> Tree:
    tree = Tree(str(folder))
    _grow(tree, folder)
    return tree


def _grow(branch: Tree, folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            _grow(branch.add(f"{path.name}/"), path)
        else:
            branch.add(f"{path.name}  [dim]{decimal(path.stat().st_size)}[/dim]")


if __name__ == "__main__":
    main()
