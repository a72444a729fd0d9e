"""`python -m gpucluster` and the `gpucluster` program."""

import gc
import os
import sys

# Before Python looks for garbage among them: some tens of megabytes.
_NEW_OBJECTS = 100_000
# The width of help.txt; and where `cli.base` looks for a cluster file, which a test compares.
_HELP_COLUMNS = 80
_DEFAULT_FILES = ("cluster.yml", "inventories/local/cluster.yml")


def main() -> None:
    """Run the command line; answer a bare `--help` from a file.

    Importing click takes four times as long as starting Python. The first command that users type should not wait for
    it, so its output is stored in help.txt, as wide as a usual terminal; a test compares the two. Where there is a
    cluster file, and on a narrower terminal, help is another one.
    """
    if sys.argv[1:] in (["--help"], ["-h"]) and not has_cluster_file() and columns() >= _HELP_COLUMNS:
        with open(os.path.join(os.path.dirname(__file__), "help.txt"), encoding="utf-8") as text:
            sys.stdout.write(text.read())
        return
    spare_the_collector()
    from gpucluster.process import signals

    signals.begin()
    from gpucluster.cli import main as run

    run()


def has_cluster_file() -> bool:
    """Whether a cluster file is named, or one of the defaults exists: `cli.base` has both, and click with them."""
    return "GPUCLUSTER_FILE" in os.environ or any(map(os.path.exists, _DEFAULT_FILES))


def columns() -> int:
    """The width of the terminal; of anything else that of the stored help."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _HELP_COLUMNS
    except (OSError, ValueError):
        return _HELP_COLUMNS


def spare_the_collector() -> None:
    """Let Python look for garbage seldom: a command imports a hundred thousand objects, uses them, and ends.

    Python's own threshold is 700 new objects. A fifth of the processor time of a start went into looking at what stays.
    """
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])


if __name__ == "__main__":
    main()
