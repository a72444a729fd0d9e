"""`python -m gpucluster` and the `gpucluster` program."""

import os
import sys


def main() -> None:
    """Run the command line; answer a bare `--help` from a file.

    Importing click takes four times as long as starting Python. The first command that people type should not wait for
    it, so its output is stored in help.txt, as wide as the narrowest terminal that is in use; a test compares the two.
    """
    if sys.argv[1:] in (["--help"], ["-h"]):
        with open(os.path.join(os.path.dirname(__file__), "help.txt"), encoding="utf-8") as text:
            sys.stdout.write(text.read())
        return
    from gpucluster.process import signals

    signals.begin()
    from gpucluster.cli import main as run

    run()


if __name__ == "__main__":
    main()
