"""The command line: which rooms, how many mutants, for how long; the table, and what survived."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mutants import observed, written
from mutants.faults import Module
from mutants.observed import CannotRunError
from mutants.rooms import EVERY, ROOMS
from mutants.trials import KILLED, LATE, WORTH_S, Result, Trials

REPOSITORY = Path(__file__).resolve().parents[2]
_HEAD = "| room | mutants | tried | killed | late | score |\n|---|---|---|---|---|---|"


def main(words: Sequence[str]) -> int:
    """Try mutants; print the results. Return 2 if that is impossible."""
    options = _options(words)
    observed.import_early()
    base = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", "/root"), ".cache")
    cache = Path(base) / "dra-driver" / "mutants"
    rooms = EVERY if options.semantic else ROOMS
    names = options.rooms or list(rooms)
    rows, survivors = [_HEAD], []
    end = time.monotonic() + options.minutes * 60
    try:
        for place, name in enumerate(names):
            source, worth = Module.mutants, WORTH_S
            if options.semantic:  # they are few
                source, worth = partial(written.mutants, faults=written.read(name)), 120.0
            trials = Trials(
                name, rooms[name], repository=REPOSITORY, cache=cache, faults=source, worth=worth
            )
            share = (end - time.monotonic()) / (len(names) - place)
            known, every = _tried(trials, options, time.monotonic() + share)
            killed = sum(trial.outcome == KILLED for trial in known)
            late = sum(trial.outcome == LATE for trial in known)
            score = f"{100 * (killed + late) / len(known):.0f} %" if known else "-"
            rows.append(f"| `{name}` | {every} | {len(known)} | {killed} | {late} | {score} |")
            survivors += [trial for trial in known if trial.outcome not in (KILLED, LATE)]
    except CannotRunError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    for survivor in sorted(survivors, key=lambda each: (each.module, each.line)):
        fault = f": {survivor.fault}" if survivor.fault else ""
        print(f"{survivor.module}:{survivor.line}: {survivor.outcome}{fault}")
        print("".join(f"    {line}\n" for line in survivor.difference), end="")
    print("\n".join(rows))
    return 0


def _tried(trials: Trials, options: argparse.Namespace, until: float) -> tuple[list[Result], int]:
    """Return the results of a room's sample, and how many mutants there are."""
    mutants, every = trials.drawn(options.seed, options.sample)
    if not options.report:
        for count, result in enumerate(trials.run(mutants, until), start=1):
            print(
                f"{trials.name} {count}: {result.outcome} {result.module}:{result.line}", flush=True
            )
    known = trials.results()
    return [known[mutant.key] for mutant in mutants if mutant.key in known], every


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hack/mutants", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(EVERY)}; all")
    parser.add_argument("--sample", type=_positive, default=300, help="mutants of a room (300)")
    parser.add_argument("--seed", type=int, default=1, help="draws the sample (1)")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="stop then; go on next time (60)"
    )
    parser.add_argument(
        "--semantic", action="store_true", help="faults that people wrote, in all rooms"
    )
    parser.add_argument("--report", action="store_true", help="try none; print what is known")
    options = parser.parse_args(words)
    rooms = EVERY if options.semantic else ROOMS
    unknown = [name for name in options.rooms if name not in rooms]
    if unknown:
        parser.error(f"there is no room {unknown[0]}: choose of {', '.join(rooms)}")
    return options


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number
