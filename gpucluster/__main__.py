"""`python -m gpucluster` and the `gpucluster` program."""

import gc
import os
import sys

# Before Python looks for garbage among them: some tens of megabytes.
_NEW_OBJECTS = 100_000


def main() -> None:
    """Run the command line; answer a bare `--help` from a file.

    Importing click takes four times as long as starting Python. The first command that users type should not wait for
    it, so its output is stored in help.txt, as wide as the narrowest terminal that is in use; a test compares the two.
    """
    if sys.argv[1:] in (["--help"], ["-h"]):
        with open(os.path.join(os.path.dirname(__file__), "help.txt"), encoding="utf-8") as text:
            sys.stdout.write(text.read())
        return
    spare_the_collector()
    from gpucluster.process import signals

    signals.begin()
    from gpucluster.cli import main as run

    run()


def spare_the_collector() -> None:
    """Let Python look for garbage seldom: a command imports a hundred thousand objects, uses them, and ends.

    Python's own threshold is 700 new objects. A fifth of the processor time of a start went into looking at what stays.
    """
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])


if __name__ == "__main__":
    main()
