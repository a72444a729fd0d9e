"""The command that makes tokens for Slurm's REST API."""

from __future__ import annotations

from pathlib import Path

import click

from gpucluster.cli import completion
from gpucluster.cli.base import Context, cluster_of, command


@command(
    "token",
    epilog="""\b
Examples:
  gpucluster token alice                      write token-CLUSTER-alice.jwt, valid for an hour
  gpucluster token alice --lifespan 7d ci.jwt
  gpucluster token alice --stdout | ...       no file: for a store of secrets""",
)
@click.argument("user", metavar="USER", shell_complete=completion.users)
@click.argument("target", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--lifespan", default="1h", metavar="TIME", help="How long it is valid: 90s, 30m, 1h, 7d. Default: 1h, most: 7d."
)
@click.option("--stdout", "to_stdout", is_flag=True, help="Write the token to standard output, and no file.")
def token(context: Context, user: str, target: Path | None, lifespan: str, to_stdout: bool) -> None:
    """Write FILE, with a token of USER for Slurm's REST API. Default: token-CLUSTER-USER.jwt.

    A program that sends the token acts as USER: it sees and changes what USER may. Only the file's owner may read it.
    It needs slurm.rest in cluster.yml. `gpucluster rotate jwt` ends all tokens before their time.
    """
    with cluster_of(context) as (cluster, reporter):
        from gpucluster.errors import InputError
        from gpucluster.operations import rest_tokens

        seconds = rest_tokens.seconds_of(lifespan)
        rest_tokens.require_rest(cluster.spec)
        if to_stdout:
            if target is not None:
                raise InputError("either FILE or --stdout", hint="Leave one of them out")
            made = cluster.slurm.token(user, seconds=seconds)
            reporter.result({"command": "token", **made.to_dict(), "token": made.token}, made.token, verbatim=True)
            return
        file = target or Path(f"token-{cluster.spec.name}-{user}.jwt")
        rest_tokens.check_file(file)
        made = cluster.slurm.token(user, seconds=seconds)
        rest_tokens.write(made, file)
        text = f"{file} written: a token of {made.user} until {made.expires}, for {made.server}"
        reporter.result({"command": "token", **made.to_dict(), "file": str(file)}, text)
