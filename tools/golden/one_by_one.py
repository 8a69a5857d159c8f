"""What scripts share that make golden cases one after the other: their command line, and how a case ends."""

import argparse
from pathlib import Path

import torch
import transformers

import make_families as families
import make_golden as golden


def save(directory, reference, seed, tensors, info):
    """Writes the logits of a case next to its checkpoint."""
    info = dict(reference=reference, transformers=transformers.__version__, torch=torch.__version__, seed=seed, **info)
    golden.save_expected(directory, tensors, info)
    families.report(directory.name, directory, info)


def run(doc, cases, make, prepare=None):
    """Calls `make(name, out, n_seeds)` for the cases that the command line names, or for all.

    With `prepare`, two folders come first on the command line, and `make` gets what `prepare` makes of them first.
    """
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if prepare:
        ap.add_argument("folders", nargs=2, type=Path)
    ap.add_argument("cases", nargs="*")
    ap.add_argument("--out", type=Path, default=golden.DEFAULT_OUT)
    ap.add_argument("--seeds", type=int, default=40, help="how many seeds to try")
    a = ap.parse_args()
    unknown = set(a.cases) - set(cases)
    if unknown:
        ap.error(f"no such case: {', '.join(sorted(unknown))}")
    transformers.logging.set_verbosity_error()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    prepared = [prepare(a.folders)] if prepare else []
    for name in a.cases or cases:
        make(*prepared, name, a.out, a.seeds)
