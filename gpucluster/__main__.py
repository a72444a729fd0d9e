"""`python -m gpucluster` and the `gpucluster` program."""

from gpucluster.cli import main

if __name__ == "__main__":
    main()
